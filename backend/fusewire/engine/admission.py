"""Who is taken to generate: no more sequences at a time than run and wait, and none that would wait
too long."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter

from fusewire.engine.admission_block import GenerationBlock, GenerationTerms
from fusewire.engine.backlog import ABOVE_SHARE
from fusewire.engine.costs import CostTable
from fusewire.engine.forecast import End, Forecast, Forecasts, Need
from fusewire.engine.generation_sequence import GenerationSequence, State
from fusewire.engine.tenant_shares import TenantShares
from fusewire.errors import Overloaded, QueueFull

# Of tokens that were allowed and generated, what is remembered of the sequences before the last.
_DECAY = 0.95
# Of the times between steps, what is remembered of those before the last.
_PACE_DECAY = 0.98
# Of what a sequence takes once it runs: with less time left it is not begun. Others may end early.
_SURELY = 0.8
# Of English; what it has is known once it is tokenised.
CHARACTERS_OF_TOKEN = 4
# What runs and what waits are gone through at most so often, however many ask.
KEPT_S = 0.05
# A tenant that asked is active for so long, where there is no longest wait.
_ACTIVE_S = 10.0


@dataclass(eq=False)
class Place:
    """A request's, from when it is taken until its last sequence has ended."""

    slots: int  # of its sequences that have not ended
    tokens: float  # of its prompt, and of its source
    most_new: int  # tokens that each of its sequences may generate
    priority: int = 0  # lower runs first
    tenant: str = ""
    deadline: float = inf
    # When it has to run to end in time; None: it need not wait, or has all time.
    begin_by: float | None = None
    cost_s: float = 0.0  # predicted, of the whole machine
    is_shared: bool = False  # among those of which each tenant has its share
    sequence: GenerationSequence | None = None  # its first, once the scheduler has it
    begun: int = 0  # tokens of that at first

    @property
    def runs(self) -> bool:
        """Its first sequence may have ended before others."""
        return self.sequence is not None and self.sequence.state is not State.WAITING

    @property
    def generated(self) -> int:
        """Of its first sequence; of a beam search 0 until it ends."""
        return 0 if self.sequence is None else len(self.sequence.token_ids) - self.begun


class Admission:
    """Keeps the places of sequences from when they are taken until they end. From any thread, so
    that who asks is refused there and then.

    How long one would wait is predicted by going through what runs and what waits before it, by
    the measured costs of steps and prompts: a sequence ends when it has generated, of the tokens
    that it may, the share that others did; then its slot and its pages are free for the next. One
    that would wait has to end before its deadline, by the same share, make none late that it would
    go before (they run by priority, then by deadline), and leave other tenants their shares; one
    that would not is taken in any case, as its text may be short. None is refused before one has
    ended, as nothing is known then of that share.

    What was found so is kept for a moment, in which those that are taken are added to it: who is
    refused costs O(1), however many wait.
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
        tokens: what has no room waits, predictably at most `max_queue_s`."""
        self._max_sequences = max_sequences
        self._max_waiting = max_waiting
        self._max_queue_s = max_queue_s
        self._clock = clock
        self.costs = costs or CostTable()
        self._pages = pages
        self._page_size = page_size
        self._taken = 0
        self._places: dict[Place, None] = {}  # as they came
        self._forecasts: Forecasts | None = None
        self._forecast_at = -inf
        self._generated = self._allowed = 0.0
        # The times between steps, prompts and the host's work among them, and what steps of so many
        # sequences cost alone.
        self._between_s = self._steps_s = 0.0
        self._refused: Counter[str] = Counter()  # in front, since the last call of `refused`
        self._tenants = TenantShares(_ACTIVE_S if max_queue_s == inf else max_queue_s)
        self._lock = threading.Lock()
        self._block: GenerationBlock | None = None
        # All that changes what is refused; the block has it at the end.
        self._changing: AbstractContextManager[None] = nullcontext()
        self._slo_s = inf

    def show_in(self, block: GenerationBlock, slo_s: float) -> None:
        """From now on the server's front refuses by this block what would be refused here; before
        there are requests. `slo_s`: the time that those have which name none."""
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
    ) -> Place:
        """A request's sequences, all or none: QueueFull; Overloaded where they would wait too long,
        wait and end after the deadline (time.monotonic()), or go before others that then would."""
        due = inf if deadline is None else deadline
        place = Place(sequences, tokens, most_new, priority, tenant, due)
        with self._lock, self._changing:
            if self._block is not None and deadline is not None:
                self._block.silent = False
            waiting = self._taken - self._max_sequences
            if waiting >= self._max_waiting:
                raise QueueFull(
                    f"queue: got {waiting} sequences waiting, wanted fewer than "
                    f"{self._max_waiting}; try again later, or raise max_waiting"
                )
            # A deadline that has passed is answered as late, not as too much.
            left_s = due - self._clock()
            if left_s > 0 and min(left_s, self._max_queue_s) < inf:
                self._judge(place, left_s)
            self._taken += sequences
            self._places[place] = None
            place.cost_s = self._need(place).cost_s
            if self._forecasts is not None:
                self._wait(self._forecasts, place)
                self._show()
        return place

    def _judge(self, place: Place, left_s: float) -> None:
        """Overloaded where it is not to be taken, with so much time left."""
        now = self._clock()
        active = self._tenants.ask(place.tenant, now)
        wait_s = self._wait_s(place)
        if wait_s > self._max_queue_s:
            raise Overloaded(
                f"queue: got a predicted wait of {wait_s:.2f} s, wanted at most "
                f"{self._max_queue_s:.2f} s",
                wait_s - self._max_queue_s,
            )
        run_s = self._run_s(place)
        if wait_s > 0:
            end_s, cost_s = wait_s + run_s, self._need(place).cost_s
            if end_s > left_s:
                raise Overloaded(
                    f"queue: got a predicted wait of {wait_s:.2f} s, and {end_s:.2f} s until "
                    f"the last token, wanted at most {left_s:.2f} s; allow it more, or ask for "
                    "fewer tokens",
                    min(wait_s, end_s - left_s),
                )
            slack_s = self._fresh(now).slack_s(place.priority, place.deadline)
            if slack_s < cost_s:
                raise Overloaded(
                    f"queue: got {cost_s:.2f} s of work that comes before other requests, wanted "
                    f"at most {max(slack_s, 0.0):.2f} s to end those in time",
                    wait_s,
                )
            room_s = min(left_s - run_s, self._max_queue_s)
            self._tenants.judge(place.tenant, cost_s, room_s, active)
            if left_s < inf:
                place.begin_by = place.deadline - _SURELY * run_s
        place.is_shared = True
        self._tenants.begin(place.tenant, self._need(place).cost_s, now)

    def stepped(self, sequences: int, seconds: float) -> None:
        """Sequences that ran got their next token, so long after the one before."""
        alone_s = self.costs.seconds(sequences, 0.0)
        with self._lock, self._changing:
            self._hear()
            self._between_s = _PACE_DECAY * self._between_s + seconds
            self._steps_s = _PACE_DECAY * self._steps_s + alone_s

    def leave(self, place: Place, sequences: int = 1, generated: int | None = None) -> None:
        """Some of its sequences have ended, with so many tokens each; None: they never ran."""
        with self._lock, self._changing:
            self._taken -= sequences
            place.slots -= sequences
            if place.slots <= 0 and place in self._places:
                del self._places[place]
                if place.is_shared:
                    self._tenants.end(place.tenant)
            if self._taken < self._max_sequences:  # none need wait, and few are gone through
                self._forecasts = None
                self._show()
            if generated is not None:
                self._generated = _DECAY * self._generated + generated
                self._allowed = _DECAY * self._allowed + place.most_new

    @property
    def backlog_s(self) -> float:
        """Until all that waits could begin, as it was predicted when it came."""
        with self._lock:
            return sum(place.cost_s for place in self._places if not place.runs)

    def refused(self) -> Counter[str]:
        """Requests that the front has refused since the last call, by tenant."""
        with self._lock, self._changing:
            self._hear()
            found, self._refused = self._refused, Counter()
        return found

    def close(self) -> None:
        """The front refuses nothing more."""
        if self._block is not None:
            self._block.close()

    def _wait_s(self, asked: Place) -> float:
        """Until there are a slot for each of its sequences and pages."""
        if not self._allowed:
            return 0.0
        now = self._clock()
        begin = self._fresh(now).begin(asked.priority, asked.deadline, self._need(asked))
        return max(0.0, begin - now)

    def _fresh(self, now: float) -> Forecasts:
        if self._forecasts is None or now - self._forecast_at > KEPT_S:
            self._forecasts, self._forecast_at = self._forecast(now), now
            self._show()
        return self._forecasts

    def _forecast(self, now: float) -> Forecasts:
        step_s = self._step_s()
        running = Forecast(now, self._max_sequences, self._pages)
        waiting = []
        for place in self._places:
            if place.runs:
                end = now + self._left(place) * step_s
                running.run(End(end, place.slots, self._pages_of(place)))
            else:
                waiting.append(place)
        forecasts = Forecasts(running)
        self._tenants.forget_waiting()
        for place in sorted(waiting, key=attrgetter("priority", "deadline")):
            self._wait(forecasts, place)
        return forecasts

    def _wait(self, forecasts: Forecasts, place: Place) -> None:
        """It waits behind, and before, those that are in them."""
        begin_by = place.deadline - self._run_s(place)
        forecasts.wait(place.priority, place.deadline, begin_by, self._need(place))
        if place.is_shared:
            self._tenants.wait(place.tenant, place.cost_s)

    def _need(self, place: Place) -> Need:
        prompt_s = self.costs.share(place.tokens, 0.0)
        run_s, pages = self._left(place) * self._step_s(), self._pages_of(place)
        part = max(place.slots / self._max_sequences, pages / self._pages)
        return Need(place.slots, pages, prompt_s, run_s, prompt_s + part * run_s)

    def _run_s(self, place: Place) -> float:
        """From when it begins to run until its last sequence ends."""
        if not self._allowed:
            return 0.0
        return self.costs.share(place.tokens, 0.0) + self._left(place) * self._step_s(place.slots)

    def _step_s(self, more: int = 0) -> float:
        """Between two tokens of a sequence, where `more` run than were taken."""
        alone_s = self.costs.seconds(min(self._taken + more, self._max_sequences), 0.0)
        return alone_s * max(1.0, self._between_s / self._steps_s if self._steps_s else 1.0)

    def _left(self, place: Place) -> float:
        """Tokens that each of its sequences still generates, by what others did."""
        share = self._generated / self._allowed if self._allowed else 1.0
        return max(1.0, share * (place.most_new - place.generated))

    def _pages_of(self, place: Place) -> float:
        """That it needs until it ends: its prompt's, which its sequences share, and theirs."""
        shared, rest = divmod(place.tokens, self._page_size)
        each = ceil((rest + place.generated + self._left(place)) / self._page_size)
        return min(shared + place.slots * each, self._pages)

    def _hear(self) -> None:
        """What was refused in front."""
        if self._block is not None:
            now = self._clock()
            for (tenant, counts), requests in self._block.take_refused().items():
                self._tenants.ask(tenant, now)
                if counts:
                    self._refused[tenant] += requests

    def _show(self) -> None:
        if self._block is not None and not self._block.silent:
            self._block.show(self._forecasts, self._tenants.above())

    def _terms(self) -> GenerationTerms:
        known = self._allowed > 0
        active, oldest_asked = self._tenants.known
        return GenerationTerms(
            now=self._clock(),
            taken=self._taken,
            max_sequences=self._max_sequences,
            max_waiting=self._max_waiting,
            max_queue_s=self._max_queue_s,
            slo_s=self._slo_s,
            share=self._generated / self._allowed if known else 0.0,
            s_of_token=self.costs.rates[0],
            step_s=self._step_s(1) if known else 0.0,
            pages=self._pages,
            page_size=self._page_size,
            characters_of_token=CHARACTERS_OF_TOKEN,
            kept_until=self._forecast_at + KEPT_S,
            active=active,
            oldest_asked=oldest_asked,
            window_s=self._tenants.window_s,
            fair=self._tenants.fair,
            waiting_s=self._tenants.waiting_s,
            above_share=ABOVE_SHARE,
        )
