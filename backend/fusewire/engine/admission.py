"""Who is taken to generate: no more sequences at a time than run and wait, and none that would wait
too long."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any

from fusewire.engine.admission_block import GenerationBlock, GenerationTerms
from fusewire.engine.backlog import ABOVE_SHARE
from fusewire.engine.costs import CostTable
from fusewire.engine.due_times import FORGET_S, UNSEEN_S, UNSEEN_SHARE, DueTimes, planned_s
from fusewire.engine.forecast import STANDING_SHARE, Forecasts, Need
from fusewire.engine.place import Place
from fusewire.engine.queue_forecast import QueueForecast
from fusewire.engine.sequence_times import SequenceTimes
from fusewire.engine.tenant_shares import TenantShares
from fusewire.errors import Overloaded, QueueFull, counted

# Share of a sequence's predicted run time that must be left before its deadline, or it is not
# begun. Where some generate less than they may, it may end earlier.
_SURELY = 0.8
# Of English, as an estimate: how many tokens a text has is known once it is tokenised.
CHARACTERS_OF_TOKEN = 4
# How long a tenant that asked is active, where there is no longest wait.
_ACTIVE_S = 10.0


class Admission:
    """Keeps the places of sequences from when they are taken until they end. From any thread, so
    that who asks is refused there and then.

    How long one would wait is predicted by going through what runs and what waits before it
    (queue_forecast.py), by the measured costs of steps and prompts: a sequence ends when it has
    generated, of the tokens that it may, the share that others did; then its slot and its pages are
    free for the next. One that would wait has to end before its deadline, by the same share, make
    none late that it would go before (they run by priority, then by deadline), and leave other
    tenants their shares; one that would not is taken in any case, as its text may be short. Where a
    queue stands, none waits long (forecast.py), but for tenants that are yet to get their share.
    Where too many end late, less of the time is planned with (due_times.py). None is refused before
    one has ended, as nothing is known then of that share.
    """

    def __init__(
        self,
        max_sequences: int,
        max_waiting: int,
        max_queue_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
        *,
        costs: CostTable | None = None,
        pages: float = inf,
        page_size: int = 1,
    ) -> None:
        """`max_sequences` run at a time, with their keys and values in `pages` of `page_size`
        tokens. Those for which there is no room wait, as predicted at most `max_queue_s`."""
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._max_queue_s = max_queue_s
        self._clock = clock
        self.times = SequenceTimes(costs or CostTable(), max_sequences, pages, page_size)
        self._taken = 0
        self._places: dict[Place, None] = {}  # in order of arrival
        self._refused: Counter[str] = Counter()  # by the front, since the last call of `refused`
        self._due_times = DueTimes()
        self._tenants = TenantShares(_ACTIVE_S if max_queue_s == inf else max_queue_s)
        self._queue = QueueForecast(self.times, self._tenants)
        self._lock = threading.Lock()
        self._block: GenerationBlock | None = None
        # Entered by all that changes what is refused; the block shows it on exit. A lock that
        # nobody else asks for costs less than a `nullcontext`.
        self._changing: AbstractContextManager[Any] = threading.Lock()
        self._slo_s = inf

    def show_in(self, block: GenerationBlock, slo_s: float) -> None:
        """Lets the server's front refuse by this block what would be refused here. Called before
        there are requests. `slo_s`: the time of requests that name none."""
        with self._lock:
            self._slo_s, self._block, self._changing = slo_s, block, block
            block.terms = self._terms
            block.silent = min(slo_s, self._max_queue_s) == inf

    def take(
        self,
        sequences: int,
        deadline: float | None = None,
        *,
        tokens: float = 0,
        most_new: int = 1,
        priority: int = 0,
        tenant: str = "",
        goes_on: bool = False,
        later_tokens: float = 0,
        later_new: int = 0,
    ) -> Place:
        """Takes a request's sequences, all or none, and returns their place.

        Raises QueueFull; Overloaded where they would wait too long, have to wait and end after the
        deadline (time.monotonic()), go before others that would then be late, or are of a tenant
        that has its share.

        `tokens`: of its prompt and source. `most_new`: tokens that each sequence may generate.
        `goes_on`: it continues one that has just ended and counted this one's tokens as later ones,
        so that it is taken in any case.
        """
        due = inf if deadline is None else deadline
        place = Place(sequences, tokens, most_new, priority, tenant, due, later_tokens, later_new)
        with self._lock, self._changing:
            if self._block is not None and deadline is not None:
                self._block.silent = False
            waiting = self._taken - self._max_sequences
            if waiting >= self._max_waiting and not goes_on:
                raise QueueFull(
                    f"queue: got {counted(waiting, 'sequences')} waiting, wanted fewer than "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            # A deadline that has passed is answered as late, not as too much.
            place.taken_at = self._clock()
            left_s = due - place.taken_at
            if not self._taken:
                self._queue.emptied(place.taken_at)
            if left_s > 0 and min(left_s, self._max_queue_s) < inf and not goes_on:
                try:
                    self._judge(place, left_s)
                except Overloaded:
                    self._queue.refused_at = place.taken_at
                    raise
            self._taken += sequences
            self._places[place] = None
            place.cost_s = self._need(place).cost_s
            if self._queue.add(place, self._taken):
                self._show()
        return place

    def _judge(self, place: Place, left_s: float) -> None:
        """Raises Overloaded where a request with `left_s` until its deadline is not to be taken."""
        now = self._clock()
        active = self._tenants.ask(place.tenant, now)
        wait_s = self._wait_s(place)
        if wait_s > 0:
            run_s, planned = self._run_s(place), self._due_times.due(now, place.deadline) - now
            end_s, cost_s = wait_s + run_s, self._need(place).cost_s
            queue = self._fresh(now)
            longest_s = self._max_queue_s
            if self._tenants.has_its_share(place.tenant, active):
                longest_s = min(longest_s, queue.longest_wait_s(place.priority, left_s, now))
            if wait_s > longest_s:
                raise Overloaded(
                    f"queue: got a predicted wait of {wait_s:.2f} s, wanted at most "
                    f"{longest_s:.2f} s",
                    wait_s - longest_s,
                )
            if end_s > planned:
                raise Overloaded(
                    f"queue: got a predicted wait of {wait_s:.2f} s, and {end_s:.2f} s until "
                    f"the last token, wanted at most {planned:.2f} s; allow it more, or ask for "
                    "fewer tokens",
                    min(wait_s, end_s - planned),
                )
            slack_s = queue.slack_s(place.priority, place.deadline)
            if slack_s < cost_s:
                raise Overloaded(
                    f"queue: got {cost_s:.2f} s of work that comes before other requests, wanted "
                    f"at most {max(slack_s, 0.0):.2f} s to end those in time",
                    wait_s,
                )
            room_s = min(planned - run_s, longest_s)
            self._tenants.judge(place.tenant, cost_s, room_s, active)
            if left_s < inf:
                place.begin_by = place.deadline - max(_SURELY, self.times.share) * run_s
        place.is_shared = True
        self._tenants.begin(place.tenant, self._need(place).cost_s, now)

    def stepped(self, sequences: int, seconds: float) -> None:
        """Running `sequences` got their next token, `seconds` after the one before."""
        alone_s = self.times.costs.seconds(sequences, 0.0)
        with self._lock, self._changing:
            self._hear()
            self.times.stepped(alone_s, seconds)

    def leave(self, place: Place, sequences: int = 1, generated: int | None = None) -> None:
        """Gives back the places of `sequences` that have ended with `generated` tokens each; None:
        they never ran."""
        with self._lock, self._changing:
            self._taken -= sequences
            place.slots -= sequences
            if place.slots <= 0 and place in self._places:
                del self._places[place]
                if place.is_shared:
                    self._tenants.end(place.tenant)
                self._ended(place, generated is not None)
            if self._taken < self._max_sequences:  # none need wait, and few are gone through
                self._queue.forget()
                self._show()
            if generated is not None and not self._is_late(place):
                self.times.ended(place.most_new, generated)

    def _ended(self, place: Place, ran: bool) -> None:
        """Notes of a request that waited whether it ended in time, or would have if it had run; not
        of one that left while there was time."""
        if place.begin_by is not None:
            now = self._clock()
            if not ran and now >= place.begin_by:
                now += self._run_s(place)
            if ran or now > place.deadline:
                self._due_times.ended(place.taken_at, place.deadline, now)

    def _is_late(self, place: Place) -> bool:
        """Whether a request ends because of its deadline, or of its client's just before: it might
        have generated more."""
        if place.deadline == inf:
            return False
        return self._clock() > place.taken_at + planned_s(place.deadline - place.taken_at)

    @property
    def backlog_s(self) -> float:
        """Seconds until all that waits could begin, as predicted when it came."""
        with self._lock:
            return sum(place.cost_s for place in self._places if not place.runs)

    def ends_s(self) -> list[float]:
        """Predicted seconds until each running request has ended, with those that go on from it, in
        ascending order."""
        with self._lock:
            step_s = self.times.step_s(self._taken)
            running = [place for place in self._places if place.runs]
            return sorted(self.times.left_s(place, step_s) for place in running)

    def refused(self) -> Counter[str]:
        """Numbers of requests that the front has refused since the last call, by tenant."""
        with self._lock, self._changing:
            self._hear()
            found, self._refused = self._refused, Counter()
        return found

    def close(self) -> None:
        """From now on the front refuses nothing."""
        if self._block is not None:
            self._block.close()

    def _wait_s(self, asked: Place) -> float:
        """Predicted seconds until there is a slot for each of the request's sequences, and pages
        for them."""
        if not self.times.known:
            return 0.0
        now = self._clock()
        begin = self._fresh(now).begin(asked.priority, asked.deadline, self._need(asked))
        return max(0.0, begin - now)

    def _fresh(self, now: float) -> Forecasts:
        found = self._queue.fresh(now)
        if found is None:
            found = self._queue.make(self._places, self._taken, now)
            self._show()
        return found

    def _need(self, place: Place) -> Need:
        return self.times.need(place, self._taken)

    def _run_s(self, place: Place) -> float:
        return self.times.run_s(place, self._taken + place.slots)

    def _hear(self) -> None:
        """Takes note of what was refused in front."""
        if self._block is not None:
            now = self._clock()
            for (tenant, counts), requests in self._block.take_refused().items():
                self._tenants.ask(tenant, now)
                self._queue.refused_at = now
                if counts:
                    self._refused[tenant] += requests

    def _show(self) -> None:
        if self._block is not None and not self._block.silent:
            self._block.show(self._queue.kept, self._tenants.above())

    def _terms(self) -> GenerationTerms:
        times = self.times
        active, oldest_asked = self._tenants.known
        now = self._clock()
        return GenerationTerms(
            now=now,
            taken=self._taken,
            max_sequences=self._max_sequences,
            max_waiting=self._max_waiting,
            max_queue_s=self._max_queue_s,
            slo_s=self._slo_s,
            share=times.share if times.known else 0.0,
            s_of_token=times.costs.rates[0],
            step_s=times.step_s(self._taken + 1) if times.known else 0.0,
            pages=times.pages,
            page_size=times.page_size,
            characters_of_token=CHARACTERS_OF_TOKEN,
            kept_until=self._queue.kept_until,
            active=active,
            oldest_asked=oldest_asked,
            window_s=self._tenants.window_s,
            fair=self._tenants.fair,
            waiting_s=self._tenants.waiting_s,
            above_share=ABOVE_SHARE,
            due_factor=self._due_times.factor(now),
            forget_s=FORGET_S,
            unseen_s=UNSEEN_S,
            unseen_share=UNSEEN_SHARE,
            standing_share=STANDING_SHARE,
        )
