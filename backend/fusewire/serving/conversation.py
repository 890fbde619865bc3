"""One request for generated text, between the engine that tells and the client that listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

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

    The engine's thread calls `hear`, another `ask`; they take turns.
    """

    def __init__(
        self,
        request: GenerateRequest,
        sender: Sender,
        metrics: GenerationMetrics,
        ended: Callable[[Conversation], None],
    ) -> None:
        """`ended` is called once, when nothing more is sent."""
        self._request = request
        self._sender = sender
        self._metrics = metrics
        self._ended = ended
        self._turn = threading.Lock()
        self._open = True
        self._arrived = time.monotonic()
        self._last: dict[int, float] = {}  # text -> when it was last heard of
        self._ticket: Ticket | None = None
        self._generated: Generated

    def begin(self, engine: GenerationEngine) -> None:
        """Submits the request; InvalidInput and Unavailable where it is not taken."""
        with self._turn:  # what is told meanwhile waits
            try:
                ticket = engine.submit(self._request.prompt, self._request.parameters, self.hear)
            except BaseException:
                self._open = False
                raise
            self._ticket = ticket
            self._generated = Generated(
                self._request,
                ticket.num_input_tokens,
                lambda token: engine.tokenizer.decode([token]),
            )

    def hear(self, told: Told) -> None:
        """What the engine calls."""
        with self._turn:
            if not self._open:
                return
            try:
                self._pass_on(told)
            except Exception as error:  # a client that cannot be reached, or a defect
                self._give_up()
                self._end(failure(error))

    def ask(self) -> None:
        """Asks whether the client has gone, and gives up where it has."""
        with self._turn:
            if self._open and self._ticket is not None and self._sender.cancelled():
                self._give_up()

    def _pass_on(self, told: Told) -> None:
        if isinstance(told, FusewireError):
            self._end(told)
            return
        if told.finish_reason == "cancelled":
            self._end(None)
            return
        now = time.monotonic()
        if told.index in self._last:
            self._metrics.next_token(now - self._last[told.index])
        elif not self._last:
            self._metrics.first_token(now - self._arrived)
        self._last[told.index] = now
        responses = self._generated.add(told)
        for outputs in responses[:-1]:
            self._sender.send(outputs, False)
        if self._generated.ended:
            self._end(responses[-1])
        elif responses:
            self._sender.send(responses[-1], False)

    def _give_up(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()

    def _end(self, answer: Answer) -> None:
        self._open = False
        try:
            self._sender.send(answer, True)
        finally:
            self._metrics.ended(answer)
            self._ended(self)
