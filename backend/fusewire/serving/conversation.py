"""One request for generated text, between the events of the engine and the client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import EventQueue, GenerationEngine, Ticket
from fusewire.engine.generation_loop import Event
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
    """Sends the events of a request, until it has ended.

    One thread calls `on_event` and `send`, another `check_cancelled`, at any time. Responses are
    not queued: where steps are faster than `send`, a response has what several of them added.
    """

    def __init__(
        self,
        request: GenerateRequest,
        sender: Sender,
        metrics: GenerationMetrics,
        ended: Callable[[Conversation], None],
        arrived: float,
    ) -> None:
        """`ended`: called once, when nothing more is sent. `arrived`: by time.monotonic()."""
        self._request = request
        self._sender = sender
        self._metrics = metrics
        self._ended = ended
        self._arrived = arrived
        self._last: dict[int, float] = {}  # text -> when its last token came
        self._answer = BestOf(request.parameters.n, request.parameters.sequences)
        self._final_lock = threading.Lock()  # over `_open`: no call of the sender after the last
        self._lock = threading.Lock()  # over all that follows
        self._ticket: Ticket | None = None
        self._generated: Generated
        self._failed: list[FusewireError | None] = []  # what ends it early
        self._open = True

    def begin(self, engine: GenerationEngine, events: EventQueue) -> None:
        """Submits the request, with this conversation as the tag of its events; InvalidInput and
        Unavailable where it is rejected."""
        with self._lock:  # events wait meanwhile
            request = self._request
            ticket = engine.submit(request.prompt, request.parameters, events, self, self._arrived)
            self._ticket = ticket
            self._generated = Generated(
                self._request,
                ticket.num_input_tokens,
                lambda token: engine.tokenizer.decode([token]),
            )

    def on_event(self, event: Event) -> bool:
        """Takes an event of the engine; returns whether there is something to send."""
        with self._lock:
            for each in self._answer.add(event):
                if isinstance(each, FusewireError):
                    self._failed.append(each)
                elif each.finish_reason == "cancelled":
                    self._failed.append(None)
                else:
                    self._note(each)
            return bool(self._failed) or self._generated.ready

    def send(self) -> None:
        """Sends what was added since the last call."""
        with self._lock:
            if not self._open:
                return
            answer = self._failed[0] if self._failed else self._generated.take()
            final = bool(self._failed) or self._generated.ended
            try:
                if final:
                    self._end(answer)
                else:
                    self._sender.send(answer, False)
            except Exception as error:  # a client that cannot be reached, or a defect
                if not final:
                    self._give_up()
                    self._end(failure(error))
                raise

    def check_cancelled(self) -> None:
        """Cancels the request if its client has disconnected. Also while a response is sent, as one
        nearly always is where tokens are streamed; not the final one."""
        if self._final_lock.acquire(blocking=False):
            try:
                if self._open and self._sender.cancelled():
                    self._give_up()
            finally:
                self._final_lock.release()

    def _end(self, answer: Answer) -> None:
        """Sends the final response."""
        try:
            with self._final_lock:
                self._open = False
                self._sender.send(answer, True)
        finally:
            self._metrics.ended(answer)
            self._ended(self)

    def _note(self, delta: Delta) -> None:
        now = time.monotonic()
        if delta.index in self._last:
            self._metrics.next_token(now - self._last[delta.index])
        elif not self._last:
            self._metrics.first_token(now - self._arrived)
        self._last[delta.index] = now
        try:
            self._generated.add(delta)
        except Exception as error:  # a defect
            self._give_up()
            self._failed.append(failure(error))

    def _give_up(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
