"""Sources translated by a generation engine, all submitted at once; without torch, as it serves."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from fusewire.engine.generation import GenerationEngine
from fusewire.errors import FusewireError
from fusewire.generation.request import GenerationRequest

Tokens = Sequence[Sequence[int]]


class Answers(NamedTuple):
    """The best texts, the log-probability of each of their tokens where reported, and the seconds
    until the last one."""

    tokens: list[list[int]]
    log_probs: list[list[float]]
    seconds: float


def translated(
    engine: GenerationEngine, sources: Tokens, beams: int, new: int, *, streamed: bool = False
) -> Answers:
    """Submits all sources at once. A text is reported when it has ended, or, if `streamed`, token
    by token with its log-probability."""
    events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    parameters = engine.parameters(
        num_beams=beams, max_new_tokens=new, temperature=0.0, ignore_eos=True
    )
    tokens: list[list[int]] = [[] for _ in sources]
    log_probs: list[list[float]] = [[] for _ in sources]
    began = time.perf_counter()
    with engine.together():
        for row, source in enumerate(sources):
            request = GenerationRequest(source, parameters, tells="tokens" if streamed else "ids")
            engine.submit(request, None, lambda event, row=row: events.put((row, event)))
    left = len(sources)
    while left:
        row, delta = events.get()
        if isinstance(delta, FusewireError):
            raise delta
        tokens[row] += delta.token_ids
        if streamed:
            log_probs[row].append(delta.logprob)
        left -= delta.finish_reason is not None
    return Answers(tokens, log_probs, time.perf_counter() - began)
