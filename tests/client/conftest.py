from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.fake_triton import FakeTriton, serve_grpc, serve_http
from tests.client.four_clients import KINDS, Call, caller


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def addresses(server: FakeTriton) -> Iterator[dict[str, str]]:
    grpc_service, grpc_port = serve_grpc(server)
    http_service, http_port = serve_http(server)
    yield {"grpc": f"127.0.0.1:{grpc_port}", "http": f"127.0.0.1:{http_port}"}
    server.released.set()
    grpc_service.stop(None)
    http_service.shutdown()
    http_service.server_close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def call(kind: str, addresses: dict[str, str]) -> Call:
    return caller(kind, addresses)
