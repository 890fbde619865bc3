"""One instance of a model that generates: requests in, responses out as they come.

Triton's thread reads and submits a request; the engine's tells what it computes; one thread sends
it, and one asks, some times a second, which requests were cancelled: Triton tells nobody.
"""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

from fusewire import kernels
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.request import Request, failure
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving.conversation import Conversation, Sender
from fusewire.serving.generation_metrics import GenerationMetrics
from fusewire.tasks.generate import read

_log = logging.getLogger(__name__)

# A question for each request under way, each a message to the server.
_ASK_S = 0.05
# For what is still under way when the model is unloaded; the server has waited for it as well.
_DRAIN_S = 5.0


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
        self._under_way: set[Conversation] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()  # something is under way, or the end
        self._closed = threading.Event()
        self._outbox: queue.SimpleQueue[Conversation | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._ask, "cancel"), (self._send, "send"))
        ]
        for thread in self._threads:
            thread.start()

    def take(self, request: Request | FusewireError, sender: Sender) -> None:
        """Takes a request, or what kept it from being read. Never raises for a request."""
        try:
            if isinstance(request, FusewireError):
                raise request
            engine = self._engine
            wanted = read(request.inputs, request.parameters, engine.limits, engine.defaults)
            conversation = Conversation(
                wanted, sender, self._metrics, self._outbox.put, self._forget
            )
            with self._lock:
                self._under_way.add(conversation)
            try:
                conversation.begin(engine)
            except BaseException:
                self._forget(conversation)
                raise
            self._some.set()
        except Exception as error:
            refused = failure(error)
            self._metrics.ended(refused)
            sender.send(refused, True)

    def close(self) -> None:
        """Lets what was taken come to its end for a while, and cancels the rest."""
        self._engine.close(_DRAIN_S)
        self._closed.set()
        self._some.set()
        self._outbox.put(None)
        for thread in self._threads:
            thread.join()
        self._metrics.close()

    def _forget(self, conversation: Conversation) -> None:
        with self._lock:
            self._under_way.discard(conversation)

    def _send(self) -> None:
        while (conversation := self._outbox.get()) is not None:
            try:
                conversation.send()
            except Exception:
                _log.exception("a response could not be sent")

    def _ask(self) -> None:
        while not self._closed.wait(_ASK_S):
            with self._lock:
                asked = list(self._under_way)
                if not asked:
                    self._some.clear()
            for conversation in asked:
                try:
                    conversation.ask()
                except Exception:
                    _log.exception("a request could not be asked whether it was cancelled")
            self._some.wait()
