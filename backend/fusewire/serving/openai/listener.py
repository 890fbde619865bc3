"""The endpoint's own server: uvicorn in a thread, opened after Triton is ready, closed before it.

If it ends unexpectedly, this is reported and it is opened again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from fusewire.errors import FusewireError
from fusewire.serving.openai.app import Api
from fusewire.serving.openai.served import served_by

if TYPE_CHECKING:
    from fusewire.serving.server import Server

_OPEN_WITHIN_S = 10.0
_REST_S = 1.0  # before it is opened again
_REFUSAL_S = 2  # for the errors to arrive at clients that read
_LOST = "server: a process of the model died before it answered; try again later"
_STOPS = "server: it stopped before the answer was complete; try again later"


class Listener:
    """OpenAI's interface to the models of one server."""

    def __init__(self, server: Server, port: int, report: Callable[[str], None]) -> None:
        """CheckpointError where a model has a chat template that cannot be used,
        ConfigurationError where the API keys cannot."""
        at = server.endpoint
        self.address = f"{at.host}:{port}"
        self._api = Api(served_by(server), server.models, at, server.settings)
        self._host, self._port = at.host, port
        self._drain_s = server.settings.exit_timeout_s
        self._report = report
        self._closing = threading.Event()
        self._ended: str | None = None  # why, the last time
        self._server = self._new()
        self._thread = threading.Thread(target=self._run, name="openai", daemon=True)

    def open(self) -> None:
        """Returns when requests are accepted."""
        self._thread.start()
        deadline = time.monotonic() + _OPEN_WITHIN_S
        while not self._server.started:
            if self._ended is not None or time.monotonic() > deadline:
                self.close()
                why = self._ended or f"not ready after {_OPEN_WITHIN_S:.0f} s"
                raise FusewireError(f"openai-port: {self.address} could not be opened ({why})")
            time.sleep(0.01)

    def lost(self, model: str, began_before: float) -> None:
        """Ends the model's requests that started before then: a process of it has died."""
        self._api.end(_LOST, model, began_before)

    def close(self) -> None:
        """Accepts no more requests; running ones may finish within the exit timeout, then end in an
        error."""
        self._closing.set()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(self._drain_s)
            self._api.end(_STOPS)
            self._thread.join()

    def _new(self) -> uvicorn.Server:
        config = uvicorn.Config(
            self._api.app(),
            host=self._host,
            port=self._port,
            loop="asyncio",
            ws="none",
            log_config=None,  # its warnings go where the program's go
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=self._drain_s + _REFUSAL_S,
        )
        return uvicorn.Server(config)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._server.run()
                self._ended = "without an error"
            except BaseException as error:  # SystemExit is uvicorn's for a port in use
                self._ended = f"{type(error).__name__}: {error}"
            if self._closing.is_set():
                return
            self._report(f"the OpenAI endpoint ended ({self._ended}); opening it again")
            self._closing.wait(_REST_S)
            self._server = self._new()
