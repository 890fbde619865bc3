"""Accepts connections at a socket and passes their requests to the app."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from fusewire.serving.gateway_protocol import REFUSAL_S, Configuration
from fusewire.serving.openai import memory
from fusewire.serving.openai.app import Api
from fusewire.serving.openai.connections import (
    ACCEPTED_AT_ONCE,
    KEEP_ALIVE_S,
    MOST_HEADER_BYTES,
    Connection,
)
from fusewire.serving.openai.loading import Models

_CLOSE_EVERY_S = 0.2
_QUEUE = 2048  # maximum number of connections that wait to be accepted
_LOST = "server: a process of the model died before it answered; try again later"
_STOPS = "server: it stopped before the answer was complete; try again later"


class Listener:
    """OpenAI's interface to the models of one server."""

    def __init__(self, configuration: Configuration) -> None:
        """Raises ConfigurationError where the API keys cannot be used."""
        settings = configuration.settings
        memory.map_large_blocks()
        self.models = Models(configuration.sources, settings.chat_template)
        self._api = Api(self.models, configuration.models, configuration.endpoint, settings)
        self._drain_s = settings.exit_timeout_s
        self._socket = socket.socket(fileno=configuration.listener)
        self._server = uvicorn.Server(_uvicorn_config(self._api.app(), self._drain_s))

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serves until it is closed or a signal ends it. Calls `ready` when requests are
        accepted."""
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not (self._server.started or serving.done()):
            await asyncio.sleep(0.01)
        if self._server.started:
            self._socket.listen(_QUEUE)  # asyncio's own backlog is smaller
            ready()
        await serving

    def lost(self, model: str, began_before: float) -> None:
        """Ends the model's requests that began before `began_before`, because a process of it has
        died."""
        self._api.end(_LOST, model, began_before)

    def close(self) -> None:
        """Accepts no more requests. Running ones may finish within the exit timeout; then they end
        with an error."""
        self._server.should_exit = True
        asyncio.get_running_loop().call_later(self._drain_s, self._api.end, _STOPS)
        self._close_connections()

    def _close_connections(self) -> None:
        """Closes connections without a request, and others after their answers. uvicorn does so
        once, and would wait for a connection that it accepts while it stops as long as its client
        keeps it."""
        for connection in list(self._server.server_state.connections):
            if not connection.transport.is_closing():
                connection.shutdown()
        asyncio.get_running_loop().call_later(_CLOSE_EVERY_S, self._close_connections)


def _uvicorn_config(app: ASGIApp, drain_s: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        log_config=None,  # its warnings go to the program's log
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_s + REFUSAL_S,
        http=Connection,
        backlog=ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
