"""Enforces the endpoint's limits for every request: on connections, and on the memory of bodies."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fusewire.serving.openai.connections import Connection
from fusewire.serving.openai.errors import ApiError, response
from fusewire.serving.openai.reading import Bodies

_FULL = "connections: got more than the endpoint takes, wanted fewer; try again later"


class Limits:
    """Wraps the app, and adds `take_bytes` to the state of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope["state"]["connection"]
        if connection.refused:
            full = response(ApiError(503, _FULL, code="too_many_connections"))
            full.headers["Connection"] = "close"
            await full(scope, receive, send)
            return
        with connection.request(), self._bodies.share() as take_bytes:
            scope["state"]["take_bytes"] = take_bytes
            await self._app(scope, receive, send)
