"""The warning of a server that others can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import Endpoint
from fusewire.serving.exposure import idle_key, warning


def of(host: str, openai: str | None = None, **settings: Any) -> str | None:
    at = Endpoint(host, 8000, 8001, 8002)
    return warning(ServerSettings(host=host, **settings), at, openai)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_there_is_none_on_loopback(host: str) -> None:
    assert of(host, f"{host}:9000") is None


def test_it_names_ports_and_remedy() -> None:
    words = of("0.0.0.0")
    assert words is not None
    assert "8000 (HTTP), 8001 (gRPC), 8002 (metrics), without authentication" in words
    assert "--host 127.0.0.1" in words
    assert "FUSEWIRE_API_KEY" not in words


def test_an_openai_endpoint_without_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = of("0.0.0.0", "0.0.0.0:9000")
    assert words is not None
    assert "9000 (OpenAI)" in words
    assert "FUSEWIRE_API_KEY" in words
    with_file = of("0.0.0.0", "0.0.0.0:9000", api_key_file=Path("keys"))
    monkeypatch.setenv("FUSEWIRE_API_KEY", "key")
    with_variable = of("0.0.0.0", "0.0.0.0:9000")
    assert with_file == with_variable == of("0.0.0.0")


def test_an_api_key_without_an_openai_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert idle_key(ServerSettings(), None) is None
    words = idle_key(ServerSettings(api_key_file=Path("keys")), None)
    assert words is not None
    assert "--openai-port" in words
    monkeypatch.setenv("FUSEWIRE_API_KEY", "key")
    assert idle_key(ServerSettings(), None) == words
    assert idle_key(ServerSettings(), "127.0.0.1:9000") is None
