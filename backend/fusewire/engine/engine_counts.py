"""What there is to do in a generation engine, and what was done."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineCounts:
    """A generation engine at one moment, and what it has done since it was loaded.

    `running`, `waiting`: sequences; `backlog_seconds`: predicted work of those that wait.
    `used_pages` of the KV cache's `pages` have `page_bytes` each and hold `live_tokens` (one that
    sequences share counts for each). `tokens` of sources, prompts and answers were computed, and
    `prefix_hit_tokens` found in the prefix cache. Steps took `step_seconds` where
    `predicted_seconds` were predicted. `graph_hits` of them replayed a recorded one, with
    `padding_tokens`; `graph_misses` found none that they could have replayed.
    """

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
