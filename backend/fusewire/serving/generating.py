"""One instance of a model that generates: requests in, responses out as they come.

Triton's thread reads and submits a request, one with a long prompt by a thread of its own; the
engine's thread puts the events of all requests into one queue; one thread empties it and sends;
one polls, a hundred times a second, which requests were cancelled: Triton has no callback for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace
from pathlib import Path

from fusewire import kernels
from fusewire.engine.generation import EventQueue, GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.request import Request, failure
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving.aside import LONG, Aside
from fusewire.serving.conversation import Answer, Conversation, Sender
from fusewire.serving.generation_metrics import GenerationMetrics
from fusewire.tasks.generate import read

_log = logging.getLogger(__name__)

# Between polls, each a message to the server for every request; where a poll takes longer, as long
# as that.
_POLL_S = 0.01
# For requests still in flight when the model is unloaded; the server has waited for it as well.
_DRAIN_S = 5.0
# For a response that is being sent then.
_SEND_S = 5.0


def load(folder: Path, settings: GenerationSettings, device: str) -> GenerationEngine:
    """The engine of a folder; ConfigurationError also where the device has no room for it."""
    try:
        return GenerationEngine(folder, settings, device)
    except kernels.Error as error:
        raise ConfigurationError(f"{device}: {error}") from None


class Generating:
    """Answers requests by a generation engine, until closed."""

    def __init__(self, engine: GenerationEngine, metrics: GenerationMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._metrics.watch(engine)
        self._in_flight: set[Conversation] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()  # something is in flight, or the end
        self._closed = threading.Event()
        self._aside = Aside()
        self._events: EventQueue = queue.SimpleQueue()  # of a conversation, or None at the end
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._poll, "cancel"), (self._send, "send"))
        ]
        for thread in self._threads:
            thread.start()

    def take(self, request: Request | FusewireError, sender: Sender) -> None:
        """Takes a request, or the error of reading it. Never raises for a request."""
        arrived = time.monotonic()
        try:
            if isinstance(request, FusewireError):
                raise request
            if request.characters > LONG:
                # The server takes its tensors back; texts were copied as they were decoded.
                inputs = {name: array.copy() for name, array in request.inputs.items()}
                later = replace(request, inputs=inputs)
                self._aside.take(lambda: self._begin_later(later, sender, arrived))
            else:
                self._begin(request, sender, arrived)
        except Exception as error:
            self._end(failure(error), sender)

    def close(self) -> None:
        """Waits a while for running requests, and cancels the rest."""
        self._aside.close()
        self._engine.close(_DRAIN_S)
        self._closed.set()
        self._some.set()
        self._events.put((None, None))
        for thread in self._threads:
            thread.join(_SEND_S)
            if thread.is_alive():
                _log.error("close: the thread %r has not ended within %g s", thread.name, _SEND_S)
        self._metrics.close()

    def _begin(self, request: Request, sender: Sender, arrived: float) -> None:
        """Reads and submits a request; raises its error if it is rejected."""
        engine = self._engine
        wanted = read(
            request.inputs, request.parameters, engine.limits, engine.defaults, engine.chat
        )
        conversation = Conversation(wanted, sender, self._metrics, self._forget, arrived)
        with self._lock:
            self._in_flight.add(conversation)
        try:
            conversation.begin(engine, self._events)
        except Exception:
            self._forget(conversation)
            raise
        self._some.set()

    def _begin_later(self, request: Request, sender: Sender, arrived: float) -> None:
        try:
            if sender.cancelled():
                self._end(None, sender)
            else:
                self._begin(request, sender, arrived)
        except Exception as error:
            self._end(failure(error), sender)

    def _end(self, answer: Answer, sender: Sender) -> None:
        """Answers a request that nothing is generated for."""
        self._metrics.ended(answer)
        sender.send(answer, True)

    def _forget(self, conversation: Conversation) -> None:
        with self._lock:
            self._in_flight.discard(conversation)

    def _send(self) -> None:
        """Takes all events, sends one response, and again."""
        ready: dict[Conversation, None] = {}  # those with something to send, in order
        ending = False
        while ready or not ending:
            events = [] if ready else [self._events.get()]
            events += [self._events.get() for _ in range(self._events.qsize())]
            for conversation, event in events:
                if conversation is None:
                    ending = True
                elif conversation.on_event(event):
                    ready[conversation] = None
            if ready:
                first = next(iter(ready))
                del ready[first]
                try:
                    first.send()
                except Exception:
                    _log.exception("a response could not be sent")

    def _poll(self) -> None:
        took = 0.0
        while not self._closed.wait(max(_POLL_S, took)):
            began = time.monotonic()
            with self._lock:
                asked = list(self._in_flight)
                if not asked:
                    self._some.clear()
            for conversation in asked:
                try:
                    conversation.check_cancelled()
                except Exception:
                    _log.exception("could not check whether a request was cancelled")
            took = time.monotonic() - began
            self._some.wait()
