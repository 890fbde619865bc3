"""One instance of a model: requests in, responses out, for any type of engine.

The server's thread reads and submits requests, and returns the answers that are complete by then.
The others are sent as they come. The engine puts the events of all requests into one queue, and one
thread takes them and sends. Another thread checks a hundred times per second whether requests were
cancelled, and then asks which ones: Triton has no callback for cancellation.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from fusewire.engine.protocol import Engine
from fusewire.engine.request import CANCELLED, Answer, failure
from fusewire.errors import Cancelled
from fusewire.serving.instance.response import Events, Incoming, Response, Whole
from fusewire.serving.instance.series import ModelSeries

_log = logging.getLogger(__name__)

# Interval between reads of the server's number of cancelled requests. Where it has grown, or is not
# known, the server is asked about each request, which is a message. Where that takes longer than
# the interval, the next read follows after as long a time.
_POLL_S = 0.01
# The server is asked at least this often, as the number misses cancellations by an ensemble of its
# own steps.
_ASK_S = 1.0
# Upper bound of the time that a request waits in the server: instances take waiting requests at
# once.
_QUEUED_S = 10.0
# Time limit for requests in flight when the model is unloaded. The server has waited for them
# before.
_DRAIN_S = 5.0
# Time limit for a response that is being sent when the model is unloaded.
_SEND_S = 5.0


class Begin(Protocol):
    """Converts requests to those of an engine, where more is needed than submitting them."""

    def begin(self, incoming: Incoming, response: Response) -> None:
        """Reads a request and submits it, possibly later. Raises the error with which it is
        refused."""

    def close(self) -> None: ...


class Role:
    """Answers requests with an engine, until it is closed."""

    def __init__(
        self,
        engine: Engine[Any, Any],
        metrics: ModelSeries,
        begin: Begin | None = None,
        cancelled: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`begin`: for a model whose responses are all sent later (Triton's decoupled models).
        `cancelled`: returns how many requests the server has cancelled so far, including those of
        other models."""
        self.engine = engine
        self._cancelled = cancelled
        self._known = cancelled()  # last number that was read; `_left_at`: when it changed
        self._left_at = -_QUEUED_S
        self._metrics = metrics
        self._metrics.watch(engine.progress)
        self._begins = begin
        self._in_flight: set[Response] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()  # set when a request is in flight, and at the end
        self._closed = threading.Event()
        self._events: Events = queue.SimpleQueue()  # (response, event); (None, None) at the end
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._poll, "cancel"), (self._send, "send"))
        ]
        for thread in self._threads:
            thread.start()

    def execute(self, requests: Sequence[Incoming]) -> list[Answer | None]:
        """Returns the answers in the order of `requests`, None for those that are sent later. Never
        raises because of a request."""
        with self.engine.together():
            responses = [self._begin(incoming) for incoming in requests]
        answers = [response.now_or_later() for response in responses]
        if None in answers:
            self._wake_poll()
        now = [
            (response, answer)
            for response, answer in zip(responses, answers, strict=True)
            if answer is not None
        ]
        if now:
            self._forget(response for response, _ in now)
            self._metrics.ended([response.end(answer) for response, answer in now])
        return answers

    def close(self) -> None:
        """Waits for requests in flight for a limited time, and ends the rest."""
        if self._begins is not None:
            self._begins.close()
        self.engine.close(_DRAIN_S)
        self._closed.set()
        self._some.set()
        self._events.put((None, None))
        for thread in self._threads:
            thread.join(_SEND_S)
            if thread.is_alive():
                _log.error("close: the thread %r has not ended within %g s", thread.name, _SEND_S)
        self._metrics.close()

    def _begin(self, incoming: Incoming) -> Response:
        response = Response(incoming, Whole(), self._events, self._ended)
        with self._lock:
            self._in_flight.add(response)
        try:
            if self._begins is not None:
                response.later()
                response.asked = not self._some_left()  # later cancellations are counted
                self._begins.begin(incoming, response)
                self._wake_poll()
            elif self._some_left() and incoming.cancelled():
                raise Cancelled(CANCELLED)
            else:
                request = incoming.read()
                response.tenant, response.probe = request.tenant, request.probe
                response.begin(self.engine, request, incoming.deadline)
        except Exception as error:
            response.fail(failure(error))
        return response

    def _wake_poll(self) -> None:
        """Wakes the polling thread, for a request in flight. The event is cleared only when there
        is none."""
        if not self._some.is_set():  # reading is far cheaper than setting it again
            self._some.set()

    def _some_left(self) -> bool:
        """Whether a request that arrives now may have been cancelled while it was in the server."""
        count, now = self._cancelled(), time.monotonic()
        if count is None:
            return True
        if count != self._known:
            self._known, self._left_at = count, now
        return now - self._left_at < _QUEUED_S

    def _ended(self, response: Response, answer: Answer) -> None:
        self._metrics.ended([response.end(answer)])
        self._forget([response])

    def _forget(self, responses: Iterable[Response]) -> None:
        with self._lock:
            self._in_flight.difference_update(responses)

    def _send(self) -> None:
        """Takes all events and sends one response, repeatedly."""
        ready: dict[Response, None] = {}  # responses with something to send, in order
        ending = False
        while ready or not ending:
            events = [] if ready else [self._events.get()]
            events += [self._events.get() for _ in range(self._events.qsize())]
            for response, event in events:
                try:
                    if response is None:
                        ending = True
                    elif response.add(event):
                        ready[response] = None
                except Exception:
                    _log.exception("a response could not be sent")
            if ready:
                first = next(iter(ready))
                del ready[first]
                try:
                    first.send()
                except Exception:
                    _log.exception("a response could not be sent")

    def _poll(self) -> None:
        took = asked_at = 0.0
        known = self._known
        while not self._closed.wait(max(_POLL_S, took)):
            began = time.monotonic()
            count = self._cancelled()  # read before the requests are checked
            every = count is None or count != known or began - asked_at >= _ASK_S
            if every:
                known, asked_at = count, began
            self._check(every)
            took = time.monotonic() - began
            self._some.wait()

    def _check(self, every: bool) -> None:
        """Cancels the requests in flight whose clients have left. Checks `every` request, or only
        those about which the server has not been asked."""
        with self._lock:
            asked = [response for response in self._in_flight if every or not response.asked]
            if not self._in_flight:
                self._some.clear()
        for response in asked:
            try:
                response.check_cancelled()
            except Exception:
                _log.exception("could not check whether a request was cancelled")
