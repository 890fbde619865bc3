"""The API keys of OpenAI's endpoint, and what every request passes, without a server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.environment import API_KEY
from fusewire.serving.openai.access import Access, ApiKeys
from fusewire.serving.openai.hosts import Hosts


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def fails(scope: Any, receive: Any, send: Any) -> None:
    """An app whose client leaves before there is an answer."""
    raise ConnectionResetError


def passed(app: Any, keys: ApiKeys | None = None, log: bool = True, **headers: str) -> list[Any]:
    """What is sent to the client."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Access(app, keys, Hosts("127.0.0.1", None), log)(scope, None, send))  # type: ignore[arg-type]
    return sent


def test_keys_come_from_a_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    assert ApiKeys.of(None) is None
    monkeypatch.setenv(API_KEY, "of-the-environment")
    keys = ApiKeys.of(None)
    assert keys is not None
    assert keys.admit("Bearer of-the-environment")
    (tmp_path / "keys").write_text("first\n\n  second  \r\n")
    keys = ApiKeys.of(tmp_path / "keys")
    assert keys is not None
    assert keys.admit("Bearer first")
    assert keys.admit("bearer second")
    for refused in (None, "", "Bearer", "Bearer ", "first", "Basic first", "Bearer first second"):
        assert not keys.admit(refused)
    assert not keys.admit("Bearer of-the-environment")
    assert not keys.admit("Bearer \udcff")  # a byte that is no UTF-8


@pytest.mark.parametrize("text", ["", "\n \n", "secret one", "secret\x00", "s" * 513, "sécret"])
def test_a_file_without_proper_keys_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigurationError, match="api-key-file: got") as caught:
        ApiKeys.of(tmp_path / "keys")
    assert "cret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"api-key-file: got .*absent .No such file"):
        ApiKeys.of(tmp_path / "absent")
    (tmp_path / "large").write_bytes(b"x" * (1 << 17))
    with pytest.raises(ConfigurationError, match="api-key-file: got over 65536 bytes"):
        ApiKeys.of(tmp_path / "large")


def test_an_empty_variable_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "")
    with pytest.raises(ConfigurationError, match="FUSEWIRE_API_KEY: got a key that no header"):
        ApiKeys.of(None)


def test_without_a_key_the_app_is_not_reached() -> None:
    start, *_ = passed(fails, ApiKeys(["key"], "test"))
    headers = dict(start["headers"])
    assert start["status"] == 401
    assert headers[b"www-authenticate"] == b"Bearer"
    assert len(headers[b"x-request-id"]) == 32


def test_a_request_without_an_answer_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConnectionResetError):
        passed(fails)
    (record,) = caplog.records
    assert record.name == "fusewire.access"
    assert record.fields["status"] == 499  # type: ignore[attr-defined]


def test_the_access_log_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    passed(answers, log=False)
    assert "fusewire.access" not in {record.name for record in caplog.records}
