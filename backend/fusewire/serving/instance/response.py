"""Connects one request's events from an engine to its client."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from fusewire.engine.protocol import Engine, Ticket
from fusewire.engine.request import Answer, Outputs, Request, failure
from fusewire.errors import FusewireError
from fusewire.serving.instance.series import End


class Sender(Protocol):
    """Sends responses to a client. No method may be called after a final `send`."""

    def send(self, answer: Answer, final: bool) -> None: ...
    def cancelled(self) -> bool: ...


class Incoming(Protocol):
    """A request as the server passes it."""

    deadline: float | None  # a time of time.monotonic; known after `read`

    def read(self) -> Request:
        """Returns its tensors and parameters. Raises FusewireError."""

    def cancelled(self) -> bool:
        """Whether the server has cancelled it. Called only before the server has its answer and
        before `sender` is called."""

    def sender(self) -> Sender:
        """Returns the sender of a request that is answered after the server's call has returned."""


class Content(Protocol):
    """What a client gets, made from an engine's events."""

    @property
    def ready(self) -> bool:
        """Whether there is something to send."""

    @property
    def ended(self) -> bool:
        """Whether nothing follows what there is to send."""

    def begun(self, ticket: Any) -> None: ...
    def add(self, event: Any) -> None: ...
    def take(self) -> Answer:
        """Returns everything added since the last call. A FusewireError is the last."""


class Whole:
    """The content of a single event, which is the answer."""

    ready = ended = False

    def begun(self, ticket: Any) -> None: ...

    def add(self, event: Answer) -> None:
        self._answer = event
        self.ready = self.ended = True

    def take(self) -> Answer:
        return self._answer


class _Over:
    """The content of a response that has ended: always empty."""

    ready, ended = False, True

    def begun(self, ticket: Any) -> None: ...
    def add(self, event: Any) -> None: ...
    def take(self) -> Answer:
        return {}


_OVER = _Over()
Events = queue.SimpleQueue[tuple["Response | None", Any]]


class Response:
    """Answers one request: at once, or through its sender until it has ended.

    The engine's threads add events. One thread calls `add` and `send` with what is in the queue,
    another one `check_cancelled`, at any time. Responses are not queued: where events come faster
    than they are sent, a response has what several events added.
    """

    def __init__(
        self,
        incoming: Incoming,
        content: Content,
        events: Events,
        ended: Callable[[Response, Answer], None],
    ) -> None:
        """`events`: the queue of events that come after `later`. `ended`: called once, when the
        sender sends nothing more."""
        self.content = content
        self._incoming: Incoming | None = incoming
        self._events = events
        self._ended = ended
        self._is_later = False  # answered by the sender, which the last answer releases
        self._sender: Sender | None = None
        self._ticket: Ticket | None = None
        self.tenant = ""  # this and `probe` are known after the request is read
        self.probe = False
        # Whether the server has been asked since the request was submitted if its client has left,
        # or need not be asked.
        self.asked = False
        self._final_lock = threading.Lock()  # guards `_open`: no call of the sender after the last
        self._lock = threading.RLock()  # guards the content, and how it is sent
        self._open = True

    def begin(self, engine: Engine[Any, Any], request: Any, deadline: float | None) -> None:
        """Submits the request. Raises the error with which it is refused."""
        with self._lock:  # events wait until `begun` was called
            self._ticket = engine.submit(request, deadline, self._on_event)
            self.content.begun(self._ticket)

    def end(self, answer: Answer) -> End:
        """Returns the outcome of the request if it gets this answer now."""
        deadline = None if self._ticket is None else self._ticket.deadline
        in_time = deadline is None or time.monotonic() <= deadline
        return End(answer, self.tenant, in_time, self.probe)

    def later(self) -> None:
        """Answers the request through the sender from now on."""
        with self._lock:
            assert self._incoming is not None
            self._sender, self._is_later = self._incoming.sender(), True
            self._incoming = None  # the server may reuse its tensors' memory

    def now_or_later(self) -> Answer | None:
        """Returns the answer if it is complete. Otherwise returns None, and the answer is sent
        later."""
        if self._is_later:  # final; a thread that sends may hold the lock for long
            return None
        with self._lock:
            if self.content.ended:
                self._open = False
                self._incoming = None  # breaks a reference cycle
                return self.content.take()
            self.later()
            return None

    def fail(self, error: FusewireError) -> None:
        """Answers a request that was not submitted."""
        with self._lock:
            if self._is_later:
                self._end(error)
            else:
                self.content.add(error)

    def add(self, event: Any) -> bool:
        """Adds an event of the engine. Returns whether there is something to send."""
        with self._lock:
            try:
                self.content.add(event)
            except Exception as error:  # a defect
                self._give_up()
                if self._open:
                    self._end(failure(error))
            return self._open and self.content.ready

    def send(self) -> None:
        """Sends everything added since the last call."""
        with self._lock:
            if not self._open:
                return
            answer, final = self.content.take(), self.content.ended
            try:
                if final:
                    self._end(answer)
                else:
                    assert self._sender is not None
                    self._sender.send(answer, False)
            except Exception as error:  # a client that cannot be reached, or a defect
                if not final:
                    self._give_up()
                    self._end(failure(error))
                raise

    def cancelled(self) -> bool:
        """Whether the client of a request that is answered later has left."""
        with self._final_lock:
            return self._open and self._sender is not None and self._sender.cancelled()

    def check_cancelled(self) -> None:
        """Cancels the request if its client has left. Also while a response is being sent, as is
        nearly always the case with streaming, but not while the final one is."""
        self.asked = False
        if self._final_lock.acquire(blocking=False):
            try:
                submitted = self._ticket is not None
                if self._open and self._sender is not None:
                    if self._sender.cancelled():
                        self._give_up()
                    self.asked = submitted
            finally:
                self._final_lock.release()

    def _on_event(self, event: Any) -> None:
        if not self._is_later:
            with self._lock:
                if not self._is_later:
                    self.content.add(event)
                    return
        self._events.put((self, event))  # without `_lock`, which a slow client holds

    def _end(self, answer: Answer) -> None:
        """Sends the final response."""
        try:
            with self._final_lock:
                self._open = False
                sender, self._sender = self._sender, None  # must be freed to unload a model
                assert sender is not None
                sender.send(answer, True)
        finally:
            self._ended(self, answer)
            # Breaks the reference cycle between the engine's record of the request and this
            # response, so that all of it is freed now. The garbage collector, which stops every
            # thread, then has almost nothing to do.
            self._ticket, self.content = None, _OVER

    def _give_up(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()


__all__ = ["Content", "Events", "Incoming", "Outputs", "Response", "Sender", "Whole"]
