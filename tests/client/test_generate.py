"""The four clients against a real server that generates: the text, and its pieces as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.server import Server
from fusewire_client import (
    AsyncClient,
    Client,
    ClientError,
    InvalidArgument,
    NotFound,
    Unavailable,
)

from tests.client.four_clients import KINDS
from tests.server.asking import Asker, until
from tests.server.test_generate import LONG, cancelled, slow_folder

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = slow_folder(tmp_path_factory.mktemp("slow"))
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    with Server([f"writer={folder}"], settings, model_settings={"dtype": "float32"}) as server:
        yield server


class Writer:
    """One kind of client; `pieces` stops after `most`."""

    def __init__(self, kind: str, server: Server) -> None:
        self._asyncio, self._protocol = kind.endswith("async"), kind.partition("-")[0]
        at = server.endpoint
        port = at.grpc_port if self._protocol == "grpc" else at.http_port
        self._address = f"{at.reachable}:{port}"

    def text(self, *args: Any, **given: Any) -> str:
        if not self._asyncio:
            with self._blocking() as client:
                return client.generate(*args, **given)

        async def ask() -> str:
            async with self._awaiting() as client:
                return await client.generate(*args, **given)

        return asyncio.run(ask())

    def pieces(self, prompt: str, most: int | None = None, **given: Any) -> list[str]:
        if not self._asyncio:
            with self._blocking() as client:
                stream = client.generate(prompt, stream=True, **given)
                found = list(islice(stream, most))
                stream.close()  # type: ignore[attr-defined]
                return found

        async def ask() -> list[str]:
            async with self._awaiting() as client:
                stream = await client.generate(prompt, stream=True, **given)
                found: list[str] = []
                async for piece in stream:
                    found.append(piece)
                    if len(found) == most:
                        break
                await stream.aclose()  # type: ignore[attr-defined]
                return found

        return asyncio.run(ask())

    def _blocking(self) -> Client:
        return Client(self._address, protocol=self._protocol, retries=0)  # type: ignore[arg-type]

    def _awaiting(self) -> AsyncClient:
        return AsyncClient(self._address, protocol=self._protocol, retries=0)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def writer(request: pytest.FixtureRequest, server: Server) -> Writer:
    return Writer(request.param, server)


def test_pieces_make_the_text(writer: Writer) -> None:
    given: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}
    pieces = writer.pieces("Once upon", **given)
    assert len(pieces) <= 30
    assert "".join(pieces) == writer.text("Once upon", **given)


def test_every_parameter_goes_through(writer: Writer) -> None:
    given: dict[str, Any] = {
        "max_new_tokens": 30,
        "temperature": 1.5,
        "seed": 3,
        "ignore_eos": True,
    }
    text = writer.text("é", logit_bias={"65": -50}, stop=["\n\n\n"], **given)
    assert text == writer.text("é", logit_bias={"65": -50}, stop=["\n\n\n"], **given)
    assert text != writer.text("é", **{**given, "seed": 4})


def test_ids_are_a_prompt(writer: Writer) -> None:
    assert writer.text(ids=[1, 2, 3], max_new_tokens=5) == writer.text(
        ids=[1, 2, 3], max_new_tokens=5, model="writer", version="1"
    )


def test_leaving_a_stream_cancels_it(writer: Writer, server: Server) -> None:
    with Asker(server) as asker:
        before = cancelled(asker, "writer")
        pieces = writer.pieces("Going", 2, max_new_tokens=LONG, ignore_eos=True)
        assert len("".join(pieces)) < LONG / 2  # they came while the text was made
        until(lambda: cancelled(asker, "writer") == before + 1)
        until(lambda: asker.metric("fusewire_running", model="writer") == 0)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"top_p": 7}, InvalidArgument, "top_p: got 7"),
        ({"temprature": 1}, InvalidArgument, "temprature: got 1"),
        ({"timeout_seconds": 1e-6}, Unavailable, "timeout_seconds: got more work"),
        ({"model": "nobody"}, (NotFound, InvalidArgument), "nobody"),
        ({"n": 2}, InvalidArgument, "n: got 2"),
        ({"seed": object()}, InvalidArgument, "parameters: "),
    ],
)
def test_errors_have_their_kind(
    writer: Writer, given: dict[str, Any], kind: type[ClientError], words: str
) -> None:
    for ask in (writer.text, writer.pieces):
        with pytest.raises(kind, match=words):
            ask("x", **given)
