"""Sequences that wait to run: by rank, each until it can no longer end by its deadline."""

from __future__ import annotations

from math import inf

from fusewire.engine.generation_sequence import GenerationSequence, Ranked, State


class GenerationQueue(Ranked):
    """Waiting sequences by rank. No deadline touches those that ran before and were
    preempted."""

    def __init__(self) -> None:
        super().__init__()
        self._next_deadline = inf  # no sequence here has an earlier one

    def add(self, sequence: GenerationSequence) -> None:
        sequence.state = State.WAITING
        last = _begin_by(sequence)
        if last is not None:
            self._next_deadline = min(self._next_deadline, last)
        super().add(sequence)

    def expire(self, now: float) -> list[GenerationSequence]:
        """Takes out those that never ran and now would run too late, best rank first. Looks at the
        queue only when such a time has passed."""
        if now < self._next_deadline:
            return []
        limited = [(last, s) for s in self if (last := _begin_by(s)) is not None]
        expired = [sequence for last, sequence in limited if last <= now]
        self._next_deadline = min((last for last, _ in limited if last > now), default=inf)
        for sequence in expired:
            self.remove(sequence)
        return expired


def _begin_by(sequence: GenerationSequence) -> float | None:
    if sequence.started:
        return None
    return sequence.deadline if sequence.begin_by is None else sequence.begin_by
