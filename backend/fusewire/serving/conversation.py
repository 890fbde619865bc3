"""One request for generated text, between what the engine tells and the client that listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Inbox, Ticket
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

    One thread calls `hear` and `send`, another `ask`, at any time. A step's response waits in no
    queue: where steps are faster than `send`, a response has what several of them added.
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
        self._last: dict[int, float] = {}  # text -> when it was last heard of
        self._answer = BestOf(request.parameters.n, request.parameters.sequences)
        self._last_word = threading.Lock()  # over `_open`, as nothing is asked after the end
        self._turn = threading.Lock()  # over all that follows
        self._ticket: Ticket | None = None
        self._generated: Generated
        self._failed: list[FusewireError | None] = []  # what ends it before its time
        self._open = True

    def begin(self, engine: GenerationEngine, told: Inbox) -> None:
        """Submits the request, to be told under this conversation; InvalidInput and Unavailable
        where it is not taken."""
        with self._turn:  # what is told meanwhile waits
            request = self._request
            ticket = engine.submit(request.prompt, request.parameters, told, self, self._arrived)
            self._ticket = ticket
            self._generated = Generated(
                self._request,
                ticket.num_input_tokens,
                lambda token: engine.tokenizer.decode([token]),
            )

    def hear(self, told: Told) -> bool:
        """Takes note of what the engine tells. Whether there is something to send."""
        with self._turn:
            for each in self._answer.hear(told):
                if isinstance(each, FusewireError):
                    self._failed.append(each)
                elif each.finish_reason == "cancelled":
                    self._failed.append(None)
                else:
                    self._note(each)
            return bool(self._failed) or self._generated.ready

    def send(self) -> None:
        """Sends what was heard since the last time."""
        with self._turn:
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

    def ask(self) -> None:
        """Asks whether the client has gone, and cancels the request where it has. Also while a
        response is sent, as one nearly always is where tokens are streamed; not the final one."""
        if self._last_word.acquire(blocking=False):
            try:
                if self._open and self._sender.cancelled():
                    self._give_up()
            finally:
                self._last_word.release()

    def _end(self, answer: Answer) -> None:
        """Sends the final response."""
        try:
            with self._last_word:
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
