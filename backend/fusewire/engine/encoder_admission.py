"""Which requests an encoder takes: those that it will answer in time, by what they will cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from fusewire.engine.backlog import Backlog
from fusewire.engine.costs import CostTable
from fusewire.engine.due_times import DueTimes
from fusewire.engine.expectation import Expectation
from fusewire.engine.request import Work


class EncoderAdmission:
    """Predicts what works cost, takes those that are computed in time, and keeps the account as
    more is known of them. From any thread, but for `learn`."""

    def __init__(
        self,
        costs: CostTable,
        expectation: Expectation,
        slo_ms: float | None = None,
        max_queue_ms: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slo_ms`, `max_queue_ms`: see Settings."""
        self._costs = costs
        self._expectation = expectation
        self._clock = clock
        self._slo_s = inf if slo_ms is None else slo_ms / 1000
        self._max_queue_s = inf if max_queue_ms is None else max_queue_ms / 1000
        self._due_times = DueTimes()
        shortest = min(self._slo_s, self._max_queue_s)
        self._backlog = Backlog(clock=clock) if shortest == inf else Backlog(shortest, clock)

    @property
    def backlog_s(self) -> float:
        """Until all that was taken is computed."""
        return self._backlog.seconds

    @property
    def slack_s(self) -> float:
        """How much later than now all that waits may begin, with none late."""
        return self._backlog.slack_s

    def take(self, work: Work) -> list[Work]:
        """Before the work is tokenised; Overloaded. It is due some time before its deadline,
        which is the latency objective's where it has none, or else when it has waited the longest
        that requests may.
        Returns those that were taken before, but have no time left behind this one, which is of
        higher priority: they are to end."""
        now = self._clock()
        if work.deadline is None and self._slo_s < inf:
            work.deadline = now + self._slo_s
        work.expected = expected = self._expectation.of(work.request)
        seconds = self._costs.share(expected.tokens, expected.squares)
        work.due = now + self._max_queue_s + seconds
        if work.deadline is not None:
            if work.deadline <= now:  # answered as late, not as too much
                work.due = min(work.due, work.deadline)
                return []
            work.due = min(work.due, self._due_times.due(now, work.deadline))
        request, margin_s = work.request, self._costs.efficient_s
        work.reserved = reserved = self._backlog.reserve(
            request.tenant, seconds, work.due, margin_s, request.priority, work
        )
        work.due, work.taken_at = reserved.due, now
        displaced = [each.of for each in reserved.displaces]
        reserved.displaces = []
        return [each for each in displaced if isinstance(each, Work)]

    def learn(self, works: Sequence[Work]) -> None:
        """These were tokenised. One thread at a time."""
        expected = [work.expected for work in works if work.expected is not None]
        self._expectation.learn(expected, [sum(work.lengths_left) for work in works])

    def correct(self, work: Work) -> None:
        """More is known of what is left of it, or less is left."""
        if work.reserved is not None:
            lengths = work.lengths_left
            seconds = self._costs.share(sum(lengths), sum_of_squares(lengths))
            self._backlog.correct(work.reserved, seconds)

    def release(self, work: Work, *, answered: bool = True) -> None:
        """It has ended. What had no answer, and was not due yet, says nothing of waits."""
        if work.reserved is not None:
            now = self._clock()
            if work.deadline is not None and work.due < inf and (answered or now >= work.due):
                self._due_times.ended(work.taken_at, work.deadline, now)
            self._backlog.release(work.reserved)
            work.reserved.of = None  # in no cycle with it

    def begin(self, lengths: Sequence[int]) -> None:
        """A micro-batch of sequences of these lengths is given to the device."""
        self._backlog.begin(self._costs.seconds(sum(lengths), sum_of_squares(lengths)))

    def idle(self) -> None:
        """All that was given to the device is computed."""
        self._backlog.idle()


def sum_of_squares(lengths: Sequence[int]) -> float:
    return float(sum(length * length for length in lengths))
