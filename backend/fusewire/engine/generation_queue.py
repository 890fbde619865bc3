"""Sequences that wait to run: bounded, by rank, each until its deadline."""

from __future__ import annotations

from math import inf

from fusewire.engine.generation_sequence import GenerationSequence, Ranked, State
from fusewire.errors import Unavailable


class QueueFull(Unavailable):
    """As many sequences wait as may: to be answered at once, and tried again later."""

    def __init__(self, waiting: int, limit: int) -> None:
        self.waiting = waiting
        self.limit = limit
        super().__init__(
            f"queue: got {waiting} sequences waiting, wanted fewer than {limit}; try again later, "
            "or raise max_waiting"
        )


class GenerationQueue(Ranked):
    """Waiting sequences by rank. New ones are refused when `limit` wait; those that ran before and
    were pre-empted always find a place, and no deadline touches them any more."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._next_deadline = inf  # no sequence here has an earlier one

    def add(self, sequence: GenerationSequence) -> None:
        """QueueFull when the sequence is new and the queue is full."""
        sequence.state = State.WAITING
        if not sequence.started:
            if len(self) >= self._limit:
                raise QueueFull(len(self), self._limit)
            if sequence.deadline is not None:
                self._next_deadline = min(self._next_deadline, sequence.deadline)
        super().add(sequence)

    def expire(self, now: float) -> list[GenerationSequence]:
        """Takes out those whose deadline is past and that never ran, best rank first. Looks at the
        queue only when a deadline has passed."""
        if now < self._next_deadline:
            return []
        limited = [(s.deadline, s) for s in self if s.deadline is not None and not s.started]
        expired = [sequence for deadline, sequence in limited if deadline <= now]
        self._next_deadline = min((d for d, _ in limited if d > now), default=inf)
        for sequence in expired:
            self.remove(sequence)
        return expired
