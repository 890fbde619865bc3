"""The two sides of `served.py`, each in its own process: the engine alone, and a gRPC client.

Both get a case once, make its requests ready, and then answer all of it, timed, each time asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.bench.worker import SETTLE_S, Handler, Worker

Run = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """Texts and their ids, in requests of `size`, of which `under_way` at once."""

    name: str
    texts: list[str]
    ids: list[np.ndarray]
    as_ids: bool
    size: int
    under_way: int

    def requests(self) -> list[dict[str, Any]]:
        """Keyword arguments of the client's `embed`, one dict a request."""
        found: list[dict[str, Any]] = []
        for begin in range(0, len(self.texts), self.size):
            part = slice(begin, begin + self.size)
            if not self.as_ids:
                found.append({"texts": self.texts[part]})
                continue
            rows = self.ids[part]
            longest = max(map(len, rows))
            ids = np.zeros((len(rows), longest), np.int64)
            for row, sequence in zip(ids, rows, strict=True):
                row[: len(sequence)] = sequence
            found.append({"ids": ids})
            if len(rows) > 1:  # within one request, ids are a rectangle
                mask = np.array([np.arange(longest) < len(row) for row in rows], np.int64)
                found[-1]["attention_mask"] = mask
        return found


Prepare = Callable[[Case], Run]


class Side(Worker):
    """One of them in its process; `setup` is `engine_side` or `client_side`."""

    def __init__(self, name: str, setup: Callable[..., Prepare], *arguments: Any) -> None:
        super().__init__(name, _answering, setup, arguments)

    def prepare(self, case: Case) -> None:
        """Makes the case's requests, and answers them once to warm up."""
        self.ask(case)

    def run(self) -> tuple[float, float]:
        """Wall and CPU seconds of answering the whole case."""
        time.sleep(SETTLE_S)
        return self.ask(None)


def _answering(setup: Callable[..., Prepare], arguments: tuple[Any, ...]) -> Handler:
    prepare = setup(*arguments)
    run: Run | None = None

    def answer(case: Case | None) -> tuple[float, float]:
        nonlocal run
        if case is not None:
            run = prepare(case)
        assert run is not None
        began, worked = time.perf_counter(), time.process_time()
        run()
        return time.perf_counter() - began, time.process_time() - worked

    return answer


def engine_side(folder: str, threads: int) -> Prepare:
    from fusewire.engine.encoder import EncoderEngine, Request
    from fusewire.engine.settings import EngineSettings

    engine = EncoderEngine(folder, "embed", EngineSettings(threads=threads))

    def inputs(request: dict[str, Any]) -> dict[str, np.ndarray]:
        if "texts" in request:
            return {"text_input": np.array([[t.encode()] for t in request["texts"]], object)}
        return {"input_ids" if name == "ids" else name: a for name, a in request.items()}

    def prepare(case: Case) -> Run:
        requests = [Request(inputs(request)) for request in case.requests()]
        together = 32 // case.size  # as many sequences a call, whatever the requests hold
        batches = [requests[i : i + together] for i in range(0, len(requests), together)]

        def run() -> None:
            for batch in batches:
                for answer in engine.answer(batch):
                    if not isinstance(answer, dict):
                        raise RuntimeError(f"the engine answered {answer}")

        return run

    return prepare


def client_side(address: str, model: str) -> Prepare:
    from fusewire_client import AsyncClient

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client = loop.run_until_complete(_connected(AsyncClient, address, model))

    def prepare(case: Case) -> Run:
        requests = case.requests()

        async def worker(waiting: Any) -> None:
            for request in waiting:
                await client.embed(**request)

        async def all_of_it() -> None:
            waiting = iter(requests)  # shared: each takes the next
            await asyncio.gather(*(worker(waiting) for _ in range(case.under_way)))

        return lambda: loop.run_until_complete(all_of_it())

    return prepare


async def _connected(kind: Any, address: str, model: str) -> Any:
    return kind(address, model=model)
