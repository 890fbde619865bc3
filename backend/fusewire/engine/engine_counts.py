"""What there is to do in a generation engine, and what was done."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineCounts:
    """An engine at one moment. Sequences run or wait, for `backlog_seconds` of work; pages are of
    keys and values, those in use of `page_bytes` each hold `live_tokens` (one that sequences share
    counts for each); tokens were computed, of sources, prompts and answers, or found with
    `prefix_hit_tokens`. Steps took `step_seconds` where `predicted_seconds` were predicted, and
    replayed a recorded one, with `padding_tokens`, or found none that they could have replayed."""

    running: int
    waiting: int
    backlog_seconds: float
    used_pages: int
    pages: int
    page_bytes: int
    live_tokens: int
    tokens: int
    step_seconds: float
    predicted_seconds: float
    preemptions: int
    prefix_hit_tokens: int
    graph_hits: int
    graph_misses: int
    padding_tokens: int
