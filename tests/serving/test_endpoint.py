"""Calls of the server that fail: by status, or by what kept an answer from coming."""

from __future__ import annotations

import socket

import pytest
from fusewire.serving.endpoint import Endpoint, EndpointError, reserve


@pytest.mark.parametrize("listening", [True, False])
def test_no_answer_in_time_is_told_from_no_answer(listening: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        endpoint = Endpoint("127.0.0.1", server.getsockname()[1], 1, 1)
        with pytest.raises(EndpointError) as caught:
            endpoint.call("health/live", timeout_s=0.2)
    assert caught.value.status == 0
    assert caught.value.timed_out == listening


@pytest.mark.parametrize(
    ("host", "address"), [("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("0", "0.0.0.0")]
)
def test_a_server_listens_at_the_address_of_a_name(host: str, address: str) -> None:
    """tritonserver takes a name for 255.255.255.255."""
    with reserve(host, [("http-port", 0)]) as reserved:
        assert reserved.address == address
