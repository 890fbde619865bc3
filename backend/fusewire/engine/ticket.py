"""A request of the generation engine that was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Ticket:
    num_input_tokens: int
    deadline: float | None  # see protocol.py
    cancel: Callable[[], None]  # from any thread; what has not ended ends within a step
    num_output_tokens: Callable[[], int]  # so far, from any thread; of a search what is certain
    # From any thread: the next token is told with those before it, of a request that tells "asked".
    ask: Callable[[], None] = lambda: None
