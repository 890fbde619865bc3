"""Sequences that wait to run: whose turn it is, each until it can no longer end by its deadline."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
from operator import attrgetter

from fusewire.engine.generation_sequence import RANK, GenerationSequence, State
from fusewire.engine.tenant_queues import TenantQueues


class GenerationQueue:
    """Sequences that wait, by priority. Of one priority those that were preempted, which no
    deadline touches any more, and those that go on from one that ended come first, by rank; then
    those with a deadline, the earliest first; then, as tenants have their turns, those without."""

    def __init__(self) -> None:
        self._timed: list[GenerationSequence] = []  # and those that were preempted
        self._untimed: TenantQueues[GenerationSequence] = TenantQueues(attrgetter("tenant"), RANK)
        self._first: GenerationSequence | None = None  # `first`, as long as it is known
        self._next_deadline = inf  # no sequence here has an earlier one

    def __len__(self) -> int:
        return len(self._timed) + len(self._untimed)

    def __bool__(self) -> bool:
        return bool(self._timed or self._untimed.queues)

    def __iter__(self) -> Iterator[GenerationSequence]:
        yield from self._timed
        yield from self._untimed

    @property
    def first(self) -> GenerationSequence | None:
        """Who runs next, if any waits."""
        if self._first is None:
            heads = self._timed[:1]
            heads += [queue[0] for queue in self._untimed.queues.values()]
            if len(heads) < 2:
                self._first = heads[0] if heads else None
                return self._first
            served = self._untimed.served
            self._first = min(
                heads,
                key=lambda each: (
                    each.priority,
                    not _is_timed(each),
                    served.get(each.tenant, 0.0),
                    each.rank,
                ),
            )
        return self._first

    def add(self, sequence: GenerationSequence) -> None:
        sequence.state = State.WAITING
        self._first = None
        if not _is_timed(sequence):
            self._untimed.add(sequence)
            return
        insort(self._timed, sequence, key=_order)
        last = _begin_by(sequence)
        if last is not None:
            self._next_deadline = min(self._next_deadline, last)

    def begin(self, sequence: GenerationSequence) -> None:
        """Takes out a sequence that runs from here on. Its tenant is charged where tenants have
        turns; one that was preempted was charged before."""
        if not _is_timed(sequence):
            self._untimed.charge(sequence, sequence.cost_s)
        self.remove(sequence)

    def remove(self, sequence: GenerationSequence) -> None:
        self._first = None
        if not _is_timed(sequence):
            self._untimed.remove(sequence)
            return
        place = bisect_left(self._timed, _order(sequence), key=_order)
        assert self._timed[place] is sequence
        del self._timed[place]

    def expire(self, now: float) -> list[GenerationSequence]:
        """Finishes and returns sequences that never ran and now would run too late, in order of
        rank. Looks at the queue only when such a time has passed."""
        if now < self._next_deadline:
            return []
        limited = [(last, s) for s in self if (last := _begin_by(s)) is not None]
        expired = sorted([each for last, each in limited if last <= now], key=RANK)
        self._next_deadline = min((last for last, _ in limited if last > now), default=inf)
        for sequence in expired:
            self.remove(sequence)
            sequence.state = State.FINISHED
        return expired


def _is_timed(sequence: GenerationSequence) -> bool:
    return sequence.deadline is not None or _is_on_its_way(sequence)


def _is_on_its_way(sequence: GenerationSequence) -> bool:
    return sequence.started or sequence.goes_on


def _order(sequence: GenerationSequence) -> tuple[int, float, tuple[int, int, int]]:
    due = sequence.deadline
    if _is_on_its_way(sequence) or due is None:
        due = -inf
    return sequence.priority, due, sequence.rank


def _begin_by(sequence: GenerationSequence) -> float | None:
    if sequence.started:
        return None
    return sequence.deadline if sequence.begin_by is None else sequence.begin_by
