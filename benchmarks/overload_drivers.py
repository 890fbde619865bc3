"""Several client processes that offer one load to a server together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from benchmarks.overload_client import Load, Outcome, Saturation, clients
from benchmarks.served_sides import Window
from benchmarks.worker import Worker

_SOON_S = 0.2  # from now to the common start


class Drivers:
    """Client processes: each sends every n-th arrival, and the first one probes afterwards until
    the server answers."""

    def __init__(
        self, count: int, name: str, protocol: str, address: str, model: str, texts: list[Any]
    ) -> None:
        self._texts = len(texts)
        self._stack = ExitStack()
        self._workers = [
            self._stack.enter_context(
                Worker(f"{name} {index}", clients, protocol, address, model, texts)
            )
            for index in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def saturate(self, seconds: float, under_way: int, ramp_s: float) -> list[int]:
        """Returns the texts that are answered in a closed loop with `under_way` requests in flight,
        at least one of each process. `ramp_s`: the time before counting begins; as long as an
        answer takes, or short answers would count twice."""
        begin = time.perf_counter() + ramp_s
        shares = parts_of(under_way, len(self._workers))
        for index, worker in enumerate(self._workers):
            first = index * self._texts // len(self._workers)
            window = Window(begin, begin + seconds, first)
            worker.send(Saturation(window, max(1, shares[index])))
        found: list[int] = [text for worker in self._workers for text in worker.receive()]
        if not found:
            raise RuntimeError(
                f"capacity: got no answer in {seconds:g} s, wanted some; give it longer"
            )
        return found

    def offer(self, load: Load) -> Outcome:
        """Offers a load. A limit of concurrent requests is split, as each process counts its
        own."""
        count = len(self._workers)
        most = (
            [None] * count if load.most_under_way is None else parts_of(load.most_under_way, count)
        )
        begin = time.perf_counter() + _SOON_S
        for index, worker in enumerate(self._workers):
            own = replace(
                load,
                arrivals=load.arrivals[index::count],
                most_under_way=most[index],
                begin=begin,
                probe=load.probe and index == 0,
            )
            worker.send(own)
        found: list[Outcome] = [worker.receive() for worker in self._workers]
        return Outcome([each for one in found for each in one.seen], found[0].recovered_s)


def requests_per_s(texts: Sequence[int], tokens: Sequence[float], seconds: float) -> float:
    """Returns the requests/s of the texts answered in `seconds`. Each counts by its number in
    `tokens`, relative to the mean."""
    mean = sum(tokens) / len(tokens)
    return sum(tokens[text] for text in texts) / mean / seconds


def parts_of(whole: int, count: int) -> list[int]:
    """Returns `count` parts of `whole` that are as equal as possible."""
    return [whole // count + (index < whole % count) for index in range(count)]
