"""Sequences that wait to run: by rank, each until its deadline."""

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
        if sequence.deadline is not None and not sequence.started:
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
