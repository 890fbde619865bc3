"""Two ways to batch requests that arrive at random."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.errors import FusewireError
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.request import GenerationRequest

from benchmarks.arrivals import WARM, Request, all_but, requests_per_s, statistics
from benchmarks.generation_curves import CONTINUOUS, RUN_TO_COMPLETION


class Continuous:
    """Submits every request at once, so that it begins as soon as the engine admits it."""

    name = CONTINUOUS

    def __init__(self, engine: GenerationEngine, most: int, beams: int = 1) -> None:
        """`most`: maximum number of concurrent sequences, for policies that limit it."""
        self._engine = engine
        self._beams = beams
        self._tickets: dict[int, Ticket] = {}  # of those that are not done
        self._events: queue.SimpleQueue[tuple[Request, Event]] = queue.SimpleQueue()

    def offer(self, request: Request) -> None:
        search = {"num_beams": self._beams, "temperature": 0.0} if self._beams > 1 else {}
        new: dict[str, Any] = {"max_new_tokens": request.new, "ignore_eos": True}
        parameters = GenerationParameters(**new, **search)
        ticket = self._engine.submit(
            GenerationRequest(request.prompt, parameters),
            None,
            lambda event: self._events.put((request, event)),
        )
        self._tickets[id(request)] = ticket

    def listen(self, until: float) -> None:
        """Handles events until that time, at least all that arrived before; raises their errors."""
        while True:
            try:
                request, event = self._events.get(timeout=max(0.0, until - time.perf_counter()))
            except queue.Empty:
                return
            if isinstance(event, FusewireError):
                raise event
            self._take(request, event)

    def stop(self) -> None:
        for ticket in self._tickets.values():
            ticket.cancel()
        while self._engine.counts().running or self._engine.counts().waiting:
            time.sleep(0.001)

    def _take(self, request: Request, delta: Delta) -> None:
        request.times.append(time.perf_counter())
        request.done = delta.finish_reason is not None
        if request.done:
            del self._tickets[id(request)]


class RunToCompletion(Continuous):
    """No request joins a running batch."""

    name = RUN_TO_COMPLETION

    def __init__(self, engine: GenerationEngine, most: int, beams: int = 1) -> None:
        super().__init__(engine, most, beams)
        self._most = most
        self._waiting: deque[Request] = deque()
        self._running = 0

    def offer(self, request: Request) -> None:
        self._waiting.append(request)
        self._begin()

    def _begin(self) -> None:
        if self._running:
            return
        batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        self._running = len(batch)
        for request in batch:
            super().offer(request)

    def _take(self, request: Request, delta: Delta) -> None:
        super()._take(request, delta)
        if request.done:
            self._running -= 1
            self._begin()


POLICIES: dict[str, Callable[[GenerationEngine, int], Continuous]] = {
    policy.name: policy for policy in (Continuous, RunToCompletion)
}


def capacity(policy: Continuous, offered: list[Request], last: int, seconds: float = inf) -> float:
    """Returns the requests/s where enough requests always wait: offers all at once and takes until
    all but the `last` are done, at most `seconds`."""
    began = time.perf_counter()
    for request in offered:
        policy.offer(request)
    while not all_but(last, offered) and time.perf_counter() < began + seconds:
        policy.listen(time.perf_counter() + 0.002)
    found = requests_per_s(offered, time.perf_counter() - began)
    policy.stop()
    return found


def measured(policy: Continuous, offered: list[Request], seconds: float) -> dict[str, Any]:
    """Offers each request at its time and returns the statistics of those after the warm-up. Ends
    after `seconds`, however many requests still wait."""
    began = time.perf_counter()
    for request in offered:
        policy.listen(began + request.at)
        policy.offer(request)
    policy.listen(began + seconds)
    end = time.perf_counter()
    policy.stop()
    return statistics(offered, began, began + WARM * seconds, end)
