"""The clients of the overload benchmark, in their own process: they send each request when it is
due, without waiting for earlier answers."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import Any

from benchmarks import machine
from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED, Arrival, Seen
from benchmarks.overload_ways import WAYS, Answer, Way
from benchmarks.served_sides import Window
from benchmarks.worker import Handler

_RETRY_S = 0.1  # upper bound of the first wait of clients that retry; it doubles with each
_RECOVERED_WITHIN_S = 180.0


@dataclass(frozen=True)
class Load:
    """The load that a client process offers, once it has its texts."""

    arrivals: Sequence[Arrival]
    deadline_s: float
    tell_deadline: bool  # in Triton's request parameter `timeout`
    tell_tenant: bool
    # The client itself refuses more, as a gateway does that limits concurrent requests.
    most_under_way: int | None
    retries: bool  # clients retry until their deadline
    begin: float = 0.0  # by perf_counter; a time in the past: at once
    probe: bool = True  # after the last arrival, send requests until the server answers


@dataclass(frozen=True)
class Saturation:
    """A closed loop that measures the server's capacity: the texts that are answered within
    `window`. It begins at once, so that the server is busy when the window begins."""

    window: Window
    under_way: int


@dataclass(frozen=True)
class Outcome:
    seen: list[Seen] = field(default_factory=list)
    recovered_s: float = 0.0  # from the last arrival to the first answer within its deadline


def clients(protocol: str, address: str, model: str, texts: list[Any]) -> Handler:
    """The setup of a Worker: answers a Load with an Outcome, and a Saturation with a list of
    texts."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def connected() -> Way:
        return WAYS[protocol](address, model, texts)

    way = loop.run_until_complete(connected())
    Finalize(None, lambda: loop.run_until_complete(way.close()), exitpriority=0)
    machine.settle()

    def answer(asked: Load | Saturation) -> Any:
        if isinstance(asked, Saturation):
            return loop.run_until_complete(_capacity(way, asked, len(texts)))
        return loop.run_until_complete(_offered(way, asked))

    return answer


async def _capacity(way: Way, asked: Saturation, texts: int) -> list[int]:
    """Returns the texts that were answered while `under_way` requests are always in flight."""
    window = asked.window
    numbers = itertools.cycle((window.first + index) % texts for index in range(texts))
    done: list[int] = []

    async def one_after_another() -> None:
        while time.perf_counter() < window.end:
            text = next(numbers)
            answer = await way.send(text, 60.0, {})
            # The server still reserves a share for tenants of the previous load.
            if answer.outcome == REFUSED:
                await asyncio.sleep(_RETRY_S)
                continue
            if answer.outcome != OK:
                raise RuntimeError(f"capacity: {answer.outcome}: {answer.message}")
            if window.begin <= time.perf_counter() < window.end:
                done.append(text)

    await asyncio.gather(*(one_after_another() for _ in range(asked.under_way)))
    return done


async def _offered(way: Way, load: Load) -> Outcome:
    """Sends each arrival at its time, then one request after the other until the server answers."""
    under_way = 0
    failures: list[str] = []

    async def one(arrival: Arrival, due: float) -> Seen:
        nonlocal under_way
        lag = time.perf_counter() - due
        refusals: list[float] = []
        if load.most_under_way is not None and under_way >= load.most_under_way:
            refusals.append(time.perf_counter() - due)
            return Seen(arrival, REFUSED, refusals[0], lag, refusals)
        under_way += 1
        try:
            answer = await _within_deadline(way, load, arrival, due, refusals)
        finally:
            under_way -= 1
        if answer.outcome == FAILED:
            failures.append(answer.message)
        first = answer.first and answer.first - due
        return Seen(arrival, answer.outcome, time.perf_counter() - due, lag, refusals, first)

    began = max(load.begin, time.perf_counter())
    tasks = []
    for arrival in load.arrivals:
        due = began + arrival.at
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(arrival, due)))
    end = time.perf_counter()
    recovered = asyncio.create_task(_recovered(way, load, end)) if load.probe else None
    seen = await asyncio.gather(*tasks)
    if failures:
        print(f"failed: {len(failures)}, the first: {failures[0]}", flush=True)
    return Outcome(list(seen), await recovered if recovered else 0.0)


async def _within_deadline(
    way: Way, load: Load, arrival: Arrival, due: float, refusals: list[float]
) -> Answer:
    """Sends a request, with retries. `refusals` gets the seconds that each refusal took, the first
    from the due time."""
    deadline = due + load.deadline_s
    asked = due
    while (left := deadline - time.perf_counter()) > 0:
        answer = await way.send(arrival.text, left, _parameters(load, arrival, left))
        if answer.outcome != REFUSED:
            return answer
        refusals.append(time.perf_counter() - asked)
        wait = random.uniform(0, _RETRY_S * 2 ** (len(refusals) - 1))
        if not load.retries or time.perf_counter() + wait >= deadline:
            return answer
        await asyncio.sleep(wait)
        asked = time.perf_counter()
    return Answer(EXPIRED, "its deadline passed before it was sent")


async def _recovered(way: Way, load: Load, end: float) -> float:
    while time.perf_counter() - end < _RECOVERED_WITHIN_S:
        if (await way.send(0, load.deadline_s, {})).outcome == OK:
            return time.perf_counter() - end
        await asyncio.sleep(0.02)
    return float("inf")


def _parameters(load: Load, arrival: Arrival, left_s: float) -> dict[str, str | int]:
    told: dict[str, str | int] = {}
    if load.tell_deadline:
        told["timeout"] = max(1, int(left_s * 1e6))
    if load.tell_tenant:
        told["tenant"] = arrival.tenant
    return told
