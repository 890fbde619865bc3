"""A process for one side of a comparison; it sleeps in a pipe read until it gets a question."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

# Threads that spin after their work would slow the next side; libraries stop spinning within this
# time.
SETTLE_S = 0.1

Handler = Callable[[Any], Any]


class Worker:
    """Calls `setup(*arguments)` once in its own process, then answers questions with the function
    that it returned.

    Exceptions of either become a RuntimeError here, with the name and the other process's
    traceback.
    """

    def __init__(self, name: str, setup: Callable[..., Handler], *arguments: Any) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, setup, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, question: Any) -> Any:
        self.send(question)
        return self.receive()

    def send(self, question: Any) -> None:
        """Sends a question and returns at once, so that several workers can work at a time; each
        question needs its `receive`."""
        self._pipe.send(question)

    def receive(self) -> Any:
        try:
            answered, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process died") from None
        if not answered:
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _serve(pipe: Connection, setup: Callable[..., Handler], arguments: tuple[Any, ...]) -> None:
    handler = None
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            handler = handler or setup(*arguments)
            pipe.send((True, handler(question)))
        except Exception:
            pipe.send((False, traceback.format_exc(limit=4)))
