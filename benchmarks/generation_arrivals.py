"""Requests that arrive at random, two ways to batch them, and the latencies of their clients."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.errors import FusewireError
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.request import GenerationRequest

from benchmarks.generation_curves import CONTINUOUS, RUN_TO_COMPLETION

# Median, standard deviation of the logarithm, maximum.
PROMPT, ANSWER = (64, 0.8, 512), (48, 0.9, 256)
WARM = 0.2  # share of the time that is not measured


@dataclass
class Request:
    at: float  # seconds after the start
    prompt: list[int]
    new: int
    times: list[float] = field(default_factory=list)  # arrival times of its tokens
    done: bool = False


def requests(rate: float, seconds: float, vocabulary: int, seed: int = 0) -> list[Request]:
    """Returns the requests that arrive within `seconds`."""
    rng, found, at = np.random.default_rng(seed), [], 0.0
    while (at := at + rng.exponential(1 / rate)) < seconds:
        length, new = (_length(rng, *which) for which in (PROMPT, ANSWER))
        found.append(Request(at, rng.integers(0, vocabulary, length).tolist(), new))
    return found


def _length(rng: np.random.Generator, middle: float, spread: float, most: int) -> int:
    return int(min(most, max(1, rng.lognormal(np.log(middle), spread))))


class Continuous:
    """Submits every request at once, so that it begins as soon as the engine admits it."""

    name = CONTINUOUS

    def __init__(self, engine: GenerationEngine, most: int, beams: int = 1) -> None:
        """`most`: maximum number of concurrent sequences, for policies that limit it."""
        self._engine = engine
        self._beams = beams
        self._tickets: list[Ticket] = []
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
        self._tickets.append(ticket)

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
        for ticket in self._tickets:
            ticket.cancel()
        while self._engine.counts().running or self._engine.counts().waiting:
            time.sleep(0.001)

    def _take(self, request: Request, delta: Delta) -> None:
        request.times.append(time.perf_counter())
        request.done = delta.finish_reason is not None


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


def statistics(offered: list[Request], began: float, begin: float, end: float) -> dict[str, Any]:
    """Returns statistics of the tokens between `begin` and `end`, and of the requests that arrived
    in between."""
    counted = [request for request in offered if began + request.at >= begin]
    first = [min([*request.times[:1], end]) - began - request.at for request in counted]
    gaps = [
        later - earlier
        for request in offered
        for earlier, later in pairwise(request.times)
        if begin <= earlier and later <= end
    ]
    tokens = sum(begin <= at < end for request in offered for at in request.times)
    return {
        "requests": len(counted),
        "without_token": sum(not request.times for request in counted),
        "answered": sum(request.done and request.times[-1] <= end for request in counted),
        "tokens_per_s": round(tokens / (end - begin), 1),
        **_percentiles("first_token_ms", first),
        **_percentiles("inter_token_ms", gaps),
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"{name}_p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}
