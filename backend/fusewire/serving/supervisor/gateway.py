"""The supervisor's side of the OpenAI endpoint, which is a separate process, opened after Triton is
ready and closed before it.

The watchdog never waits for that process, so no request there can stop the healing of models. A
process that ended, or whose event loop is blocked, is replaced. The socket stays open meanwhile:
new connections wait for the next process instead of being refused.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError
from fusewire.passed_errors import error_of
from fusewire.serving import model_config, repository
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint, bound
from fusewire.serving.gateway_protocol import REFUSAL_S, Configuration, ModelSource, line
from fusewire.serving.supervisor.gateway_process import Ended, GatewayProcess
from fusewire.serving.supervisor.pins import Pin

_TICK_S = 0.25
# Time limit between signs of life of the event loop, which sends one every ALIVE_EVERY_S.
_HANGS_S = 10.0
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0


class Gateway:
    """OpenAI's interface to the models of one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        port: int,
        entries: Mapping[str, Path],
        serves: Callable[[str], Pin | None],
        settings: ServerSettings,
        report: Callable[[str], None],
    ) -> None:
        """`endpoint`: that of Triton. `entries`: model -> repository entry. `serves`: returns the
        pin of a model that is served. `port`: 0 for any free one. Raises ConfigurationError where
        it is not free."""
        self._endpoint = endpoint
        self._models = tuple(entries)
        self._serves = serves
        self._settings = settings
        self._report = report
        # At first those of the repository, later those of the pins: the repository may have
        # changed.
        self._sources = dict(_sources(entries))
        self._listener = bound("openai-port", endpoint.host, port)
        self.address = f"{endpoint.host}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._supervise, name="openai", daemon=True)
        self._lock = threading.Lock()  # guards the next two
        self._process: GatewayProcess | None = None
        self._opened = False
        self._settled = threading.Event()  # the first start has succeeded, or failed
        self._error: FusewireError | None = None  # of the first start
        self._ends_at = math.inf  # set when it closes; a signal handler may set it too

    def start(self) -> None:
        """Starts the process, which then reads its models in parallel."""
        self._thread.start()

    def check(self) -> None:
        """Raises the error for which the process could not start: ConfigurationError,
        CheckpointError for a model's files, FusewireError."""
        if self._error is not None:
            raise self._error

    def open(self) -> None:
        """Returns when requests are accepted. Raises as `check`."""
        with self._lock:
            self._opened = True
            if self._process is not None:
                self._process.send(line("open"))
        self._settled.wait()
        self.check()

    def lost(self, model: str, began_before: float) -> None:
        """Ends the model's requests that began before `began_before`, because a process of it has
        died."""
        with self._lock:
            if self._process is not None:
                self._process.send(line("lost", model=model, began_before=began_before))

    def close(self) -> None:
        """Accepts no more requests. Running ones may finish within the exit timeout; then they end
        with an error."""
        self._listener.close()  # otherwise new connections would wait for a next process
        within_s = self._settings.exit_timeout_s + REFUSAL_S + 1
        self._ends_at = min(self._ends_at, time.monotonic() + within_s)
        with self._lock:
            if self._process is not None:
                self._process.send(line("close"))
        if self._thread.is_alive():
            self._thread.join()

    def kill(self) -> None:
        """Ends the process without waiting for requests. `close` must still be called. Takes no
        lock, so that a signal handler may call it."""
        self._ends_at = 0.0

    def _supervise(self) -> None:
        rest_s = _FIRST_REST_S
        while True:
            began = time.monotonic()
            ready, why = self._run_once(began)
            if self._closing():
                self._settled.set()
                return
            if not self._settled.is_set():
                self._error = self._error or FusewireError(
                    f"openai-port: the endpoint at {self.address} could not be opened ({why})"
                )
                self._settled.set()
                return
            # Waits longer and longer only if the process cannot start: if a request ends each
            # process, the other requests must not wait for long.
            rest_s = _FIRST_REST_S if ready else min(2 * rest_s, _LONGEST_REST_S)
            self._report(f"the OpenAI endpoint ended ({why}); starting it again in {rest_s:.0f} s")
            until = time.monotonic() + rest_s
            while time.monotonic() < until:
                if self._closing():
                    return
                time.sleep(_TICK_S)

    def _run_once(self, began: float) -> tuple[bool, str]:
        """Runs a process until it ends. Returns whether it was ready, and why it ended."""
        try:
            process = GatewayProcess(self._listener.fileno(), self._configuration().line())
        except (OSError, ValueError, FusewireError) as error:  # ValueError: the socket was closed
            return False, f"it could not be started: {error}"
        with self._lock:
            self._process = process
            if self._opened:
                process.send(line("open"))
        ready, why = False, ""
        try:
            limit_s = self._settings.start_timeout_s
            silent_s = 0.0
            while not why:
                event = process.event(_TICK_S)
                # Counted, not measured: the supervisor itself may have been stopped (SIGSTOP).
                silent_s = silent_s + _TICK_S if event is None else 0.0
                if time.monotonic() >= self._ends_at:
                    why = "closed"
                elif silent_s >= limit_s:
                    why = f"it gave no sign of life for {limit_s:.0f} s"
                elif event is not None and event["event"] == "ready":
                    ready, limit_s = True, _HANGS_S
                    self._became_ready(began)
                elif event is not None:
                    why = self._failure(event)
        except Ended:
            pass
        finally:
            with self._lock:
                self._process = None
            how = process.end()
        return ready, why or how

    def _failure(self, event: dict[str, Any]) -> str:
        """Returns the reason for which an event must end the process, or "". A model that fails
        ends the first start only: later the other models stay served."""
        if event["event"] == "loaded":
            self._report(f"{event['model']}: the OpenAI endpoint serves it again")
        if "error" not in event:
            return ""
        error = error_of(event["error"])
        if not self._settled.is_set():
            self._error = error
        elif event["event"] == "left_out":
            words = "the OpenAI endpoint cannot serve it and goes on trying"
            self._report(f"{event['model']}: {words} ({error})")
            return ""
        return str(error)

    def _became_ready(self, began: float) -> None:
        if self._settled.is_set():
            took_s = time.monotonic() - began
            self._report(f"the OpenAI endpoint is ready again after {took_s:.1f} s")
        self._settled.set()

    def _closing(self) -> bool:
        return self._ends_at < math.inf

    def _configuration(self) -> Configuration:
        for model, source in self._sources.items():
            if pin := self._serves(model):
                folder = source.folder.parent / str(max(pin.versions))
                self._sources[model] = ModelSource(folder=folder, config=pin.config)
        return Configuration(
            supervisor=os.getpid(),
            listener=self._listener.fileno(),
            endpoint=self._endpoint,
            models=self._models,
            sources=self._sources,
            settings=self._settings,
        )


def _sources(entries: Mapping[str, Path]) -> Iterator[tuple[str, ModelSource]]:
    """Yields the sources of the models that have a version folder."""
    for model, entry in entries.items():
        folder = repository.served_version(entry)
        if folder is not None:
            config = model_config.as_json(model_config.read(entry / repository.CONFIG))
            yield model, ModelSource(folder=folder, config=config)
