"""The limits of OpenAI's endpoint on connections and bodies, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fusewire.serving.openai import connections, reading
from fusewire.serving.openai.bodies import Body
from fusewire.serving.openai.errors import ApiError
from fusewire.serving.openai.limits import Limits
from fusewire.serving.openai.reading import SHORT_BYTES, Bodies
from fusewire.text import bounded_json

PAGE = Path(__file__).parents[3] / "docs" / "openai-endpoint.md"


class Connection:
    """One of too many, or not."""

    def __init__(self, refused: bool) -> None:
        self.refused = refused

    def request(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def sent(refused: bool) -> list[Any]:
    messages: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["take_bytes"](1)
        await send({"type": "answered"})

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "state": {"connection": Connection(refused)}}
    asyncio.run(Limits(app)(scope, None, send))  # type: ignore[arg-type]
    return messages


def test_a_request_on_one_of_too_many_connections_is_refused() -> None:
    assert sent(refused=False) == [{"type": "answered"}]
    start, body = sent(refused=True)
    assert start["status"] == 503
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"1"
    assert headers[b"connection"] == b"close"
    assert json.loads(body["body"])["error"]["code"] == "too_many_connections"


def test_bodies_share_memory_which_short_ones_do_not_need() -> None:
    async def share() -> None:
        bodies = Bodies(most_bytes=1000)
        with bodies.share() as take:
            take(SHORT_BYTES)
            take(600)
            with bodies.share() as another:
                another(SHORT_BYTES)
                another(400)
                with pytest.raises(ApiError, match="no room") as refused:
                    another(1)
                assert refused.value.status_code == 503
            take(400)
            with bodies.share() as short:
                short(SHORT_BYTES)
        with bodies.share() as take:
            take(SHORT_BYTES + 1000)

    asyncio.run(share())


class Calls:
    """In flight, none of which is ended."""

    def begin(self) -> Calls:
        return self

    async def unless_ended(self, handle: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await handle()


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=a"])
def test_a_client_that_leaves_within_its_body_is_no_error(kind: str) -> None:
    app, router = FastAPI(), APIRouter(route_class=reading.BoundedRoute)
    app.state.in_flight = Calls()

    @router.post("/json")
    async def read_json(body: Body) -> None:
        raise AssertionError(body)

    @router.post("/form")
    async def read_form(request: Request) -> None:
        raise AssertionError(await request.upload())  # type: ignore[attr-defined]

    app.include_router(router)
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {}])
    statuses = []

    async def receive() -> Any:
        return next(messages) or {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    class Reads(Connection):
        def body(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    path = "/json" if "json" in kind else "/form"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", kind.encode())],
        "state": {"connection": Reads(refused=False), "take_bytes": lambda size: None},
    }
    asyncio.run(app(scope, receive, send))
    assert statuses[0] == 499


@pytest.mark.parametrize(
    "words",
    [
        f"size of a body | {reading.MOST_BODY_BYTES >> 20} MiB |",
        f"a form with audio | {reading.MOST_UPLOAD_BYTES >> 10} KiB |",
        f"token ids, entries of lists, …) | {bounded_json.MOST_VALUES:,} |",
        f"members of objects in a body | {bounded_json.MOST_MEMBERS:,} |",
        f"without its texts | {bounded_json.MOST_BYTES:,} characters |",
        f"{reading.BODY_TIMEOUT_S:.0f} s, and 1 s more for every "
        f"{reading.LEAST_BYTES_PER_S >> 10} KiB received |",
        f"{reading.MOST_TOTAL_BYTES >> 20} MiB; the first {SHORT_BYTES >> 10} KiB of each",
        f"requests in flight | {connections.MOST_CONNECTIONS}, at most half",
        f"headers | {connections.MOST_HEADER_BYTES >> 10} KiB |",
        f"end of the headers | {connections.HEADER_TIMEOUT_S:.0f} s |",
        f"requests of a connection | {connections.KEEP_ALIVE_S} s |",
        f"{connections.LEAST_READ_BYTES >> 10} KiB in {connections.READ_TIMEOUT_S:.0f} s,",
    ],
)
def test_the_page_has_the_limits_of_the_code(words: str) -> None:
    assert words in PAGE.read_text()
