"""The two sides of served benchmarks, each in its own process: the engine alone, a gRPC client.

Both get a case once and prepare its requests. Then each question runs all of them, timed, or
repeats them and counts the tokens of a time window.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.worker import Handler, Worker

if TYPE_CHECKING:
    from fusewire.settings import EngineSettings

MOST_ROWS = 128  # of a request: a server's default limit
SETTLE_S = 0.1  # longer than threads of a server spin after their work


class Prepared(NamedTuple):
    """A case prepared for one side: in steps, each a request or a call of the engine."""

    steps: list[Any]
    tokens: list[int]  # of each step
    answer: Callable[[Iterable[Any]], None]


@dataclass(frozen=True)
class Window:
    """The time to count in, by `perf_counter`, which is one clock for all processes of a
    machine."""

    begin: float
    end: float
    first: int = 0  # the step to begin with, different for each client


Prepare = Callable[[Any], Prepared]  # for a case, such as `served_requests.Case`


class Side(Worker):
    """One side in its own process; `setup` is `engine_side` or `client_side`."""

    def __init__(self, name: str, setup: Callable[..., Prepare], *arguments: Any) -> None:
        super().__init__(name, _answering, setup, arguments)

    def prepare(self, case: Any) -> None:
        """Prepares the case's requests, and runs them once to warm up."""
        self.ask(case)

    def run(self) -> tuple[float, float]:
        """Returns the wall and CPU seconds of the whole case."""
        time.sleep(SETTLE_S)
        return self.ask(None)

    def begin(self, window: Window) -> None:
        """Repeats the case from now to the window's end; `receive` returns the tokens of the steps
        begun within the window."""
        self.send(window)


def _answering(setup: Callable[..., Prepare], arguments: tuple[Any, ...]) -> Handler:
    prepare = setup(*arguments)
    prepared: Prepared | None = None

    def answer(question: Any) -> tuple[float, float] | int:
        nonlocal prepared
        if not isinstance(question, Window | None):
            prepared = prepare(question)
        assert prepared is not None
        if isinstance(question, Window):
            return tokens_within(question, prepared)
        began, worked = time.perf_counter(), time.process_time()
        prepared.answer(prepared.steps)
        return time.perf_counter() - began, time.process_time() - worked

    return answer


def tokens_within(window: Window, prepared: Prepared) -> int:
    """Repeats the case until the window ends; returns the tokens of the steps begun within it."""
    tokens = 0

    def taken() -> Iterator[Any]:
        nonlocal tokens
        steps = itertools.cycle(zip(prepared.steps, prepared.tokens, strict=True))
        for step, its_tokens in itertools.islice(steps, window.first, None):
            now = time.perf_counter()
            if now >= window.end:
                return
            if now >= window.begin:
                tokens += its_tokens
            yield step

    prepared.answer(taken())
    return tokens


def engine_side(folder: str, settings: EngineSettings, device: str) -> Prepare:
    from fusewire.engine.encoder import EncoderEngine, Request

    engine = EncoderEngine(folder, "embed", settings, device=device)

    def inputs(request: dict[str, Any]) -> dict[str, np.ndarray]:
        if "texts" in request:
            return {"text_input": np.array([[t.encode()] for t in request["texts"]], object)}
        return {"input_ids" if name == "ids" else name: a for name, a in request.items()}

    def answer(calls: Iterable[list[Request]]) -> None:
        for call in calls:
            for found in engine.answer(call):
                if not isinstance(found, dict):
                    raise RuntimeError(f"the engine answered {found}")

    def prepare(case: Any) -> Prepared:
        requests = [Request(inputs(request)) for request in case.requests()]
        together = case.a_call // case.size
        calls = [requests[i : i + together] for i in range(0, len(requests), together)]
        return Prepared(calls, case.tokens(case.a_call), answer)

    return prepare


def client_side(address: str, model: str) -> Prepare:
    from fusewire_client import AsyncClient

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client = loop.run_until_complete(_connected(AsyncClient, address, model))

    def prepare(case: Any) -> Prepared:
        async def worker(waiting: Iterator[dict[str, Any]]) -> None:
            for request in waiting:
                await client.embed(**request)

        async def all_of(requests: Iterable[dict[str, Any]]) -> None:
            waiting = iter(requests)  # shared: each thread takes the next
            await asyncio.gather(*(worker(waiting) for _ in range(case.under_way)))

        def answer(requests: Iterable[dict[str, Any]]) -> None:
            loop.run_until_complete(all_of(requests))

        return Prepared(case.requests(), case.tokens(case.size), answer)

    return prepare


async def _connected(kind: Any, address: str, model: str) -> Any:
    return kind(address, model=model, max_batch=MOST_ROWS)
