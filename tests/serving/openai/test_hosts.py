"""Which hosts a request to OpenAI's endpoint may name."""

from __future__ import annotations

import socket

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.openai.hosts import Hosts
from starlette.datastructures import Headers

OWN = socket.gethostname()


def allows(hosts: Hosts, **headers: str) -> bool:
    return hosts.refusal(Headers(headers)) is None


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:9000", "127.1.2.3:9000", "[::1]:9000", "localhost.", OWN],
)
def test_on_loopback_the_names_of_this_machine_are_allowed(host: str) -> None:
    hosts = Hosts("127.0.0.1", None)
    assert allows(hosts, host=host)
    assert allows(hosts, host=host, origin=f"http://{host}")
    assert not allows(hosts, host=host, origin="https://evil.example")


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "[::1", "a@evil.example:1"]
)
def test_on_loopback_other_names_are_refused(host: str) -> None:
    refusal = Hosts("127.0.0.1", None).refusal(Headers({"host": host}))
    assert refusal is not None
    assert refusal.status_code == 403
    assert refusal.body["error"]["code"] == "host_not_allowed"


def test_a_client_that_names_none_is_no_browser() -> None:
    assert allows(Hosts("127.0.0.1", None))
    assert not allows(Hosts("127.0.0.1", None), host="localhost", origin="null")


def test_open_to_the_network_any_name_is_allowed_unless_some_are_listed() -> None:
    assert allows(Hosts("0.0.0.0", None), host="models.example.com", origin="https://a.example")
    listed = Hosts("0.0.0.0", "models.example.com, 10.0.0.5,fd00::5")
    for host in ("Models.Example.com:443", "10.0.0.5", "[fd00::5]:9000", "localhost"):
        assert allows(listed, host=host)
    assert not allows(listed, host="10.0.0.6")
    assert allows(Hosts("127.0.0.1", "*"), host="models.example.com")


@pytest.mark.parametrize("listed", ["", "a,,b", "example.com:80", "http://example.com", "a/b"])
def test_what_is_no_host_name_is_refused(listed: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed-hosts: got"):
        Hosts("127.0.0.1", listed)
