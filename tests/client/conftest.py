from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_triton import FakeTriton, serve_grpc, serve_http
from fusewire_client import AsyncClient, Client

KINDS = ["grpc", "http", "grpc-async", "http-async"]
Call = Callable[..., Any]


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def addresses(server: FakeTriton) -> Iterator[dict[str, str]]:
    grpc_service, grpc_port = serve_grpc(server)
    http_service, http_port = serve_http(server)
    yield {"grpc": f"127.0.0.1:{grpc_port}", "http": f"127.0.0.1:{http_port}"}
    grpc_service.stop(None)
    http_service.shutdown()
    http_service.server_close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def call(kind: str, addresses: dict[str, str]) -> Call:
    """call(method, *args, options={...}, **kwargs) on each of the four clients."""
    return caller(kind, addresses)


def caller(kind: str, addresses: dict[str, str]) -> Call:
    protocol = kind.partition("-")[0]

    def call(method: str, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        settings = {"protocol": protocol, "timeout_s": 10, "backoff_s": 0.01, **(options or {})}
        if kind.endswith("async"):

            async def ask() -> Any:
                async with AsyncClient(addresses[protocol], **settings) as client:
                    return await getattr(client, method)(*args, **kwargs)

            return asyncio.run(ask())
        with Client(addresses[protocol], **settings) as client:
            return getattr(client, method)(*args, **kwargs)

    return call
