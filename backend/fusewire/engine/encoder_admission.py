"""Which requests an encoder takes: those that it will answer in time, by what they will cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf

from fusewire.engine.admission_block import AdmissionBlock, Terms
from fusewire.engine.backlog import (
    ABOVE_SHARE,
    JITTER,
    LEAST_RETRY_S,
    MOST_MARGIN,
    NONE_S,
    Backlog,
)
from fusewire.engine.costs import CostTable
from fusewire.engine.due_times import FORGET_S, UNSEEN_S, UNSEEN_SHARE, DueTimes
from fusewire.engine.expectation import Expectation
from fusewire.engine.next_batch import margin_s
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
        block: AdmissionBlock | None = None,
    ) -> None:
        """`slo_ms`, `max_queue_ms`: see Settings. `block`: where the server's front reads what
        would be refused here."""
        self._costs = costs
        self._expectation = expectation
        self._clock = clock
        self._slo_s = inf if slo_ms is None else slo_ms / 1000
        self._max_queue_s = inf if max_queue_ms is None else max_queue_ms / 1000
        self._due_times = DueTimes()
        shortest = min(self._slo_s, self._max_queue_s)
        window_s = 10.0 if shortest == inf else shortest
        self._backlog = Backlog(window_s, clock, block, block)
        # The micro-batch before, if it is full: when it was given, and what was planned for it.
        self._given: tuple[float, float] | None = None
        self._refused: Counter[str] = Counter()  # by the front, since the last call of `refused`
        self._judgements = 0  # requests: the front knows by it which of those it let in have come
        self._block = block
        # Entered by all that changes what is refused; the block shows it on exit.
        self._changing: AbstractContextManager[None] = nullcontext()
        if block is not None:
            block.terms, block.levels = self._terms, lambda: self._backlog.regions
            block.silent = shortest == inf
            self._changing = block

    @property
    def backlog_s(self) -> float:
        """Predicted seconds until all that was taken is computed."""
        return self._backlog.seconds

    @property
    def slack_s(self) -> float:
        """Seconds by which all that waits may begin later than now, with none late."""
        return self._backlog.slack_s

    def take(self, work: Work) -> list[Work]:
        """Takes a work before it is tokenised, or raises Overloaded. It is due some time before its
        deadline (without one: that of the latency objective), or when it has waited the longest
        that requests may, if that is earlier.

        Returns works that were taken before and have no time left after this one, which is of
        higher priority: the caller is to end them.
        """
        with self._changing:
            if self._block is not None and work.deadline is not None:
                self._block.silent = False
            self._judgements += 1
            self._hear()
            return self._take(work)

    def learn(self, works: Sequence[Work]) -> None:
        """Learns from works that were tokenised. One thread at a time."""
        expected = [work.expected for work in works if work.expected is not None]
        with self._changing:
            self._expectation.learn(expected, [sum(work.lengths_left) for work in works])

    def correct(self, works: Iterable[Work]) -> None:
        """Corrects the predictions of works of which more is known now, or less is left."""
        left = []
        for work in works:
            if work.reserved is not None:
                lengths = work.lengths_left
                seconds = self._costs.share(sum(lengths), sum_of_squares(lengths))
                left.append((work.reserved, seconds))
        if left:
            with self._changing:
                for reserved, seconds in left:
                    self._backlog.correct(reserved, seconds)

    def release(self, work: Work, *, answered: bool = True) -> None:
        """Releases a work that has ended. One that had no answer, and was not due yet, says nothing
        of waits."""
        if work.reserved is not None:
            with self._changing:
                now = self._clock()
                if work.deadline is not None and work.due < inf and (answered or now >= work.due):
                    self._due_times.ended(work.taken_at, work.deadline, now)
                self._backlog.release(work.reserved)
            work.reserved.of = None  # no cycle keeps it alive

    def begin(self, lengths: Sequence[int]) -> None:
        """A micro-batch of sequences of these lengths is given to the device, after another one
        unless it was `idle`."""
        tokens, squares = sum(lengths), sum_of_squares(lengths)
        with self._changing:
            now, before = self._clock(), self._given
            if before is not None:
                self._due_times.computed(before[1], now - before[0], now)
            # What a smaller one takes says little of many that wait.
            full = tokens >= self._costs.efficient_tokens
            planned_s = self._costs.share(tokens, squares) if full else 0.0
            self._given = (now, planned_s) if planned_s else None
            self._backlog.begin(self._costs.seconds(tokens, squares))

    def idle(self) -> None:
        """All that was given to the device is computed, and nothing waits for it."""
        with self._changing:
            self._given = None
            self._backlog.idle()

    def refused(self) -> Counter[str]:
        """Numbers of requests that the front has refused since the last call, by tenant."""
        with self._changing:
            self._hear()
            found, self._refused = self._refused, Counter()
        return found

    def close(self) -> None:
        """From now on the front refuses nothing."""
        if self._block is not None:
            self._block.close()

    def _take(self, work: Work) -> list[Work]:
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
        request = work.request
        work.reserved = reserved = self._backlog.reserve(
            request.tenant, seconds, work.due, margin_s(self._costs), request.priority, work
        )
        work.due, work.taken_at = reserved.due, now
        displaced = [each.of for each in reserved.displaces]
        reserved.displaces = []
        return [each for each in displaced if isinstance(each, Work)]

    def _hear(self) -> None:
        """Takes note of what was refused in front: those tenants have asked."""
        if self._block is None:
            return
        for (tenant, counts), requests in self._block.take_refused().items():
            self._backlog.ask(tenant)
            if counts:
                self._refused[tenant] += requests

    def _terms(self) -> Terms:
        now, (s_of_token, s_of_square) = self._clock(), self._costs.rates
        return Terms(
            now=now,
            **self._backlog.known,
            due_factor=self._due_times.factor(now),
            forget_s=FORGET_S,
            unseen_s=UNSEEN_S,
            unseen_share=UNSEEN_SHARE,
            slo_s=self._slo_s,
            max_queue_s=self._max_queue_s,
            margin_s=margin_s(self._costs),
            most_margin=MOST_MARGIN,
            above_share=ABOVE_SHARE,
            s_of_token=s_of_token,
            s_of_square=s_of_square,
            tokens_of_byte=self._expectation.tokens_of_byte,
            tokens_of_image=self._expectation.tokens_of_image,
            jitter=JITTER,
            least_retry_s=LEAST_RETRY_S,
            none_s=NONE_S,
            judgements=self._judgements,
        )


def sum_of_squares(lengths: Sequence[int]) -> float:
    return float(sum(length * length for length in lengths))
