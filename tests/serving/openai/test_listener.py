"""The listener stops whatever its clients do."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.gateway_protocol import Configuration
from fusewire.serving.openai.listener import Listener


def test_a_connection_that_is_accepted_while_it_stops_does_not_hold_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """uvicorn closes the connections that it has when it begins to stop; this one comes later."""

    async def serve() -> None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        settings = ServerSettings(exit_timeout_s=1)
        endpoint = Endpoint(host="127.0.0.1", http_port=1, grpc_port=1, metrics_port=1)
        listener = Listener(
            Configuration(
                supervisor=os.getpid(),
                listener=os.dup(bound.fileno()),
                endpoint=endpoint,
                models=(),
                sources={},
                settings=settings,
            )
        )
        ready = asyncio.Event()
        serving = asyncio.create_task(listener.serve(ready.set))
        await ready.wait()
        connections = listener._server.server_state.connections
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        while not connections:
            await asyncio.sleep(0.01)
        late = set(connections)
        connections.clear()
        listener.close()
        while any(server.is_serving() for server in listener._server.servers):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        connections.update(late)
        assert await reader.read() == b""
        await serving
        writer.close()
        bound.close()

    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        asyncio.run(asyncio.wait_for(serve(), 60))
    assert not caplog.records
