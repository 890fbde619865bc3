"""The four clients against a real server that generates: the text, and its pieces as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server
from fusewire_client import (
    AsyncClient,
    Cancelled,
    Client,
    ClientError,
    InvalidArgument,
    NotFound,
    Unavailable,
)

from tests.client.four_clients import KINDS
from tests.server.asking import Asker, until
from tests.server.test_generate import LONG, cancelled, slower_folder

pytestmark = pytest.mark.server
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
RENDERED = "<user>é\n<assistant>Who?\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = slower_folder(tmp_path_factory.mktemp("slow"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, exit_timeout_s=2)
    with Server([f"writer={folder}"], settings, model_settings={"dtype": "float32"}) as server:
        yield server


class Writer:
    """One kind of client; `pieces` stops after `most`."""

    def __init__(self, kind: str, server: Server) -> None:
        self._asyncio, self._protocol = kind.endswith("async"), kind.partition("-")[0]
        at = server.endpoint
        port = at.grpc_port if self._protocol == "grpc" else at.http_port
        self._address = f"{at.reachable}:{port}"

    def text(self, *args: Any, **given: Any) -> Any:
        method = given.pop("method", "generate")
        if not self._asyncio:
            with self._blocking() as client:
                return getattr(client, method)(*args, **given)

        async def ask() -> Any:
            async with self._awaiting() as client:
                return await getattr(client, method)(*args, **given)

        return asyncio.run(ask())

    def pieces(self, prompt: Any, most: int | None = None, **given: Any) -> list[Any]:
        method = given.pop("method", "generate")
        if not self._asyncio:
            with self._blocking() as client:
                stream = getattr(client, method)(prompt, stream=True, **given)
                found = list(islice(stream, most))
                stream.close()
                return found

        async def ask() -> list[Any]:
            async with self._awaiting() as client:
                stream = await getattr(client, method)(prompt, stream=True, **given)
                found: list[Any] = []
                async for piece in stream:
                    found.append(piece)
                    if len(found) == most:
                        break
                await stream.aclose()
                return found

        return asyncio.run(ask())

    def read_after_close(self, prompt: str, **given: Any) -> None:
        """Closes the client when a piece of a stream has come, and reads on."""
        if not self._asyncio:
            with self._blocking() as client:
                stream = client.generate(prompt, stream=True, **given)
                next(stream)
                client.close()
                list(stream)
            return

        async def ask() -> None:
            async with self._awaiting() as client:
                stream = await client.generate(prompt, stream=True, **given)
                await anext(stream)
                await client.close()
                async for _ in stream:
                    pass

        asyncio.run(ask())

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


# Over HTTP the server does not see that a client leaves before its first response.
@pytest.mark.parametrize("kind", ["grpc", "grpc-async"])
def test_an_error_ends_the_other_requests_of_its_list(kind: str, server: Server) -> None:
    with Asker(server) as asker:
        before = cancelled(asker, "writer")
        with pytest.raises(InvalidArgument, match=r"^prompt\[1\]: got 9001 tokens"):
            Writer(kind, server).text(["Going", "x" * 9000], max_new_tokens=LONG, ignore_eos=True)
        until(lambda: cancelled(asker, "writer") == before + 1)


def test_closing_a_client_ends_its_streams(writer: Writer, server: Server) -> None:
    with Asker(server) as asker:
        before = cancelled(asker, "writer")
        with pytest.raises(Cancelled, match=r"^call: got its client closed"):
            writer.read_after_close("Going", max_new_tokens=LONG, ignore_eos=True)
        until(lambda: cancelled(asker, "writer") == before + 1)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"top_p": 7}, InvalidArgument, "top_p: got 7"),
        ({"temprature": 1}, InvalidArgument, "temprature: got 1"),
        ({"timeout_seconds": 1e-6}, Unavailable, "timeout: got more work"),
        ({"model": "nobody"}, NotFound, "model: got 'nobody', wanted one of writer; correct"),
        ({"seed": object()}, InvalidArgument, "parameters: "),
    ],
)
def test_errors_have_their_kind(
    writer: Writer, given: dict[str, Any], kind: type[ClientError], words: str
) -> None:
    for ask in (writer.text, writer.pieces):
        with pytest.raises(kind, match=words):
            ask("x", **given)


def test_details_are_usage_reason_and_log_probabilities(writer: Writer) -> None:
    given: dict[str, Any] = {"max_new_tokens": 7, "ignore_eos": True}
    whole = writer.text("Once", details=True, logprobs=2, **given)
    assert whole.text == writer.text("Once", **given)
    assert whole.finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1 + len("Once"), 7)
    assert whole.usage.total_tokens == 12
    assert [sorted(each.rank for each in at.values()) for at in whole.logprobs] == [[1, 2]] * 7
    assert whole.prompt_logprobs is None
    scored = writer.text("Once", details=True, prompt_logprobs=1, **given)
    assert scored.text == whole.text
    assert [at is None for at in scored.prompt_logprobs] == [True, False, False, False, False]
    assert all(1 in {e.rank for e in at.values()} for at in scored.prompt_logprobs[1:])
    likelihood = sum(max(each.logprob for each in at.values()) for at in whole.logprobs)
    assert likelihood == pytest.approx(whole.cumulative_logprob, abs=1e-4)
    pieces = writer.pieces("Once", details=True, logprobs=2, **given)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum(piece.usage.completion_tokens for piece in pieces) == 7
    assert [piece.finish_reason for piece in pieces][-1] == "length"
    assert {piece.finish_reason for piece in pieces[:-1]} <= {None}
    assert [at.keys() for p in pieces for at in p.logprobs] == [at.keys() for at in whole.logprobs]


def test_a_list_of_prompts_is_answered_in_its_order(writer: Writer) -> None:
    given: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True}
    prompts = ["Once", "upon", "a", "time"]
    texts = writer.text(prompts, **given)
    assert texts == [writer.text(prompt, **given) for prompt in prompts]
    assert [each.text for each in writer.text(prompts, details=True, **given)] == texts
    assert writer.text([]) == []
    with pytest.raises(InvalidArgument, match=r"^prompt\[2\]: got \d+ tokens"):
        writer.text(["Once", "upon", "a " * 5000, "time"])
    with pytest.raises(InvalidArgument, match=r"^prompt\[0\]: got \d+ tokens"):
        writer.text(["a " * 5000])
    with pytest.raises(InvalidArgument, match=r"^text_input: got \d+ tokens"):
        writer.text("a " * 5000)
    with pytest.raises(InvalidArgument, match=r"^top_p: got 2\.0"):
        writer.text(prompts, top_p=2.0)
    with pytest.raises(InvalidArgument, match=r"^sampling_parameters: got \d+ bytes"):
        writer.text(prompts, stop=["x" * 300_000])
    with pytest.raises(InvalidArgument, match="stream: got several prompts, wanted one"):
        writer.pieces(prompts)  # type: ignore[arg-type]


def test_n_texts_are_a_list(writer: Writer) -> None:
    given: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3, "n": 2}
    one, other = writer.text("Once", **given)
    assert one != other
    assert writer.text(["Once", "upon"], **given)[0] == [one, other]
    of_transformers = {"num_return_sequences": given["n"], **given}
    del of_transformers["n"]
    assert writer.text("Once", **of_transformers) == [one, other]
    pieces = writer.pieces("Once", details=True, **given)
    joined = ["".join(piece.text for piece in pieces if piece.index == n) for n in (0, 1)]
    assert joined == [one, other]
    with pytest.raises(InvalidArgument, match="n: got 2 together with stream, wanted details=True"):
        writer.pieces("Once", **given)


def test_a_conversation_is_rendered_by_the_server(writer: Writer) -> None:
    given: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True}
    messages = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "Who?"}]
    wanted = writer.text(RENDERED, add_special_tokens=False, **given)
    assert writer.text(messages, method="chat", **given) == wanted
    assert "".join(writer.pieces(messages, method="chat", **given)) == wanted
    details = writer.text(messages, method="chat", details=True, **given)
    assert (details.text, details.usage.prompt_tokens) == (wanted, len(RENDERED.encode()))
    with pytest.raises(InvalidArgument, match="messages: got str, wanted a list"):
        writer.text("Who?", method="chat")
    with pytest.raises(InvalidArgument, match="content"):
        writer.text([{"role": "user", "content": 3}], method="chat")
