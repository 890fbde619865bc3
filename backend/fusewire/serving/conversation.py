"""One request for generated text, between the engine that tells and the client that listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.engine.generation_loop import Told
from fusewire.engine.request import failure
from fusewire.errors import FusewireError
from fusewire.serving.generated import Generated, Outputs
from fusewire.serving.generation_metrics import GenerationMetrics
from fusewire.tasks.generate import GenerateRequest

# Outputs, the error that ends a request, or None for one that was cancelled.
Answer = Outputs | FusewireError | None


class Sender(Protocol):
    """The way back to one request's client. Nothing may be called after a final `send`."""

    def send(self, answer: Answer, final: bool) -> None: ...
    def cancelled(self) -> bool: ...


class Conversation:
    """Sends what the engine tells of a request, until it has ended.

    The engine calls `hear`, one thread `send`, another `ask`. A step's response waits in no queue:
    where steps are faster than `send`, a response has what several of them added.
    """

    def __init__(
        self,
        request: GenerateRequest,
        sender: Sender,
        metrics: GenerationMetrics,
        wake: Callable[[Conversation], None],
        ended: Callable[[Conversation], None],
    ) -> None:
        """`wake`: `send` is to be called, once. `ended`: called once, when nothing more is sent."""
        self._request = request
        self._sender = sender
        self._metrics = metrics
        self._wake = wake
        self._ended = ended
        self._arrived = time.monotonic()
        self._last: dict[int, float] = {}  # text -> when it was last heard of
        self._news = threading.Lock()  # over what was heard
        self._ticket: Ticket | None = None
        self._generated: Generated
        self._failed: list[FusewireError | None] = []  # what ends it before its time
        self._woken = False
        self._turn = threading.Lock()  # over the sender; taken before the other
        self._open = True

    def begin(self, engine: GenerationEngine) -> None:
        """Submits the request; InvalidInput and Unavailable where it is not taken."""
        with self._news:  # what is told meanwhile waits
            ticket = engine.submit(self._request.prompt, self._request.parameters, self.hear)
            self._generated = Generated(
                self._request,
                ticket.num_input_tokens,
                lambda token: engine.tokenizer.decode([token]),
            )
            self._ticket = ticket

    def hear(self, told: Told) -> None:
        """What the engine calls."""
        with self._news:
            if isinstance(told, FusewireError):
                self._failed.append(told)
            elif told.finish_reason == "cancelled":
                self._failed.append(None)
            else:
                self._time(told)
                self._generated.add(told)
            if (self._failed or self._generated.ready) and not self._woken:
                self._woken = True
                self._wake(self)

    def send(self) -> None:
        """Sends what was heard since the last time."""
        with self._turn:
            if not self._open:
                return
            with self._news:
                self._woken = False
                answer = self._failed[0] if self._failed else self._generated.take()
                final = bool(self._failed) or self._generated.ended
            try:
                self._sender.send(answer, final)
            except Exception as error:  # a client that cannot be reached, or a defect
                if not final:
                    self._give_up()
                    self._sender.send(failure(error), True)
                final = True
                raise
            finally:
                if final:
                    self._open = False
                    self._metrics.ended(answer)
                    self._ended(self)

    def ask(self) -> None:
        """Asks whether the client has gone, and gives up where it has."""
        with self._turn:
            if self._open and self._ticket is not None and self._sender.cancelled():
                self._give_up()

    def _time(self, told: Delta) -> None:
        now = time.monotonic()
        if told.index in self._last:
            self._metrics.next_token(now - self._last[told.index])
        elif not self._last:
            self._metrics.first_token(now - self._arrived)
        self._last[told.index] = now

    def _give_up(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
