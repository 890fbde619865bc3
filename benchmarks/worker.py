"""A process for one side of a comparison, which is suspended while it has no question: threads that
spin after their work would slow the other sides."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

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
        # Before multiprocessing waits for its processes, as a suspended one would not end.
        atexit.register(self._process.kill)

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
        self._resume()
        self._pipe.send(question)

    def receive(self) -> Any:
        try:
            answered, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process died") from None
        os.kill(self.pid, signal.SIGSTOP)
        if not answered:
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def close(self) -> None:
        self._pipe.close()
        self._resume()
        self._process.join(5)
        self._process.kill()
        atexit.unregister(self._process.kill)

    def _resume(self) -> None:
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGCONT)

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
