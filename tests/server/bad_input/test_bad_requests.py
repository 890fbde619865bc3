"""Each kind of bad request by both protocols, in one execution with good ones."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.supervisor.server import Server
from fusewire.text.tokenizer_files import WANTED

from tests.reference import SENTENCES
from tests.server.bad_input.alike import alike
from tests.server.bad_input.message import (
    NOT_UTF8,
    GrpcCaller,
    HttpCaller,
    Message,
    Reply,
    Tensor,
    ids,
    texts,
)
from tests.server.bad_input.verdict import OURS

LONG = " ".join(SENTENCES)
ROW = [2, 9, 8, 3]


def pair(first: str, second: str) -> list[Tensor]:
    return [texts(first), texts(second, name="text_pair")]


def masked(*values: int) -> list[Tensor]:
    return [ids(ROW), ids(values, name="attention_mask")]


@dataclass
class Bad:
    """A bad request and what its refusal must say, in this order."""

    inputs: list[Tensor]
    field: str
    got: str
    wanted: str
    remedy: str
    parameters: dict[str, Any] | None = None


# Requests that give the same inputs, since only those share an execution:
# name -> (model, the good ones' inputs, the bad ones).
GROUPS: dict[str, tuple[str, list[list[Tensor]], list[Bad]]] = {
    "texts": (
        "embed",
        [[texts(sentence)] for sentence in ("short", SENTENCES[0], SENTENCES[4])],
        [
            Bad([texts(LONG)], "text_input", " tokens", "at most 64", "truncate"),
            Bad(
                [texts("fine", b"caf\xe9")], "text_input[1]", "byte 0xe9 at offset 3",
                "UTF-8", "encode",
            ),
            Bad([texts(b"\xed\xa0\x80")], "text_input", "byte 0xed", "UTF-8", "encode"),
            Bad([texts("a")], "trunkate", "true", "truncate, max_length", "remove",
                {"trunkate": True}),
            Bad([texts("a")], "truncate", "1", "true or false", "correct", {"truncate": 1}),
            Bad([texts("a")], "max_length", "1.5", "a whole number", "correct",
                {"max_length": 1.5}),
            Bad([texts("a")], "max_length", "65", "at most 64", "lower", {"max_length": 65}),
            Bad([texts("a")], "pooling", "'sum'", "'cls', 'mean', 'max' or 'last'", "correct",
                {"pooling": "sum"}),
            Bad([texts("a")], "'x/y\\n", "7", "one of the parameters", "remove",
                {"x/y\n" + "z" * 20_000: 7}),
        ],
    ),
    "ids": (
        "embed",
        [[ids(ROW)], [ids([2, *range(9, 60), 3])], [ids([5], [6])]],
        [
            Bad([Tensor("input_ids", "INT64", (1, 0), b"")], "input_ids", "shape [1, 0]",
                "at least 1 token", "send"),
            Bad([ids([2, -1, 3])], "input_ids", "-1", "0..", "this model's tokenizer"),
            Bad([ids([2, 3], [2, 10**6])], "input_ids[1]", "1000000", "0..", "tokenizer"),
            Bad([ids([-(2**63)])], "input_ids", str(-(2**63)), "vocabulary", "tokenizer"),
            Bad([ids([2**40])], "input_ids", str(2**40), "vocabulary", "tokenizer"),
            Bad([ids([9] * 65)], "input_ids", "65 tokens", "at most 64", "shorten"),
        ],
    ),
    "masks": (
        "embed",
        [masked(1, 1, 1, 1), masked(0, 1, 0, 1), masked(1, 0, 0, 0)],
        [
            Bad(masked(1, 2, 1, 1), "attention_mask", "2", "0 for padding", "correct"),
            Bad(masked(1, -1, 1, 1), "attention_mask", "-1", "0 for padding", "correct"),
            Bad(masked(1, 1, 1), "attention_mask", "shape [1, 3]", "shape [1, 4]", "send"),
            Bad(masked(0, 0, 0, 0), "attention_mask", "all zeros", "at least one 1", "leave out"),
        ],
    ),
    "pairs": (
        "answer",
        [pair("Where?", SENTENCES[6]), pair("Who lives in Leipzig?", SENTENCES[2])],
        [
            Bad(pair(LONG, "me"), "text_input", "a question of", "at most", "shorten"),
            Bad([texts("who?"), texts(b"\xff", name="text_pair")], "text_pair", "byte 0xff",
                "UTF-8", "encode"),
            Bad(pair("who?", "me"), "truncate", "true", "parameters of answer", "remove",
                {"truncate": True}),
            Bad(pair("who?", "me"), "top_k", "0", "greater than or equal to 1", "correct",
                {"top_k": 0}),
        ],
    ),
    "masks to fill": (
        "fill",
        [[texts("a [MASK] day")], [texts("the [MASK] is [MASK]")]],
        [
            Bad([texts("a day")], "text_input", "no mask token", "once or more", "put it"),
            Bad([texts("a [MASK]")], "top_k", "1001", "less than or equal to 1000", "correct",
                {"top_k": 1001}),
        ],
    ),
}  # fmt: skip


@pytest.fixture(params=["grpc", "http"])
def caller(
    request: pytest.FixtureRequest, grpc_caller: GrpcCaller, http_caller: HttpCaller
) -> GrpcCaller | HttpCaller:
    return grpc_caller if request.param == "grpc" else http_caller


def together(caller: GrpcCaller | HttpCaller, messages: list[Message]) -> list[Reply]:
    """Sends all at the same moment."""
    barrier = threading.Barrier(len(messages))

    def send(message: Message) -> Reply:
        barrier.wait(20)
        return caller.call(message)

    with ThreadPoolExecutor(len(messages)) as threads:
        return list(threads.map(send, messages))


def executions(server: Server, model: str) -> int:
    (row,) = server.endpoint.call(f"models/{model}/stats")["model_stats"]
    return int(row["execution_count"])


def executions_since(before: int, server: Server, model: str) -> int:
    """The server replies first and counts afterwards."""
    deadline = time.monotonic() + 60
    while (now := executions(server, model)) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    return now - before


def good(reply: Reply) -> bool:
    return reply.status in ("OK", "200")


def refused(reply: Reply) -> bool:
    return reply.status in ("INVALID_ARGUMENT", "400")


@pytest.mark.parametrize("group", GROUPS)
def test_bad_requests_are_refused_by_name_and_harm_none_of_their_execution(
    hostile_server: Server, caller: GrpcCaller | HttpCaller, group: str, device: str
) -> None:
    model, right, wrong = GROUPS[group]
    asked = [Message(f"gather-{model}", inputs) for inputs in right]
    bad = [Message(f"gather-{model}", case.inputs, case.parameters or {}) for case in wrong]
    alone = [caller.call(replace(message, model=model)) for message in asked]
    assert all(good(reply) for reply in alone), alone
    before = executions(hostile_server, f"gather-{model}")
    # Good ones among the bad, first and last too.
    replies = together(caller, [*asked, *bad, *asked])
    assert executions_since(before, hostile_server, f"gather-{model}") == 1
    for reply, wanted in zip(
        replies[: len(asked)] + replies[len(asked) + len(bad) :], alone * 2, strict=True
    ):
        alike(device, reply, wanted)
    for case, reply in zip(wrong, replies[len(asked) :], strict=False):
        assert refused(reply), (case, reply)
        assert OURS.fullmatch(reply.text), reply
        assert len(reply.text) < 500, reply
        place = 0
        for part in (case.field, f"got {case.got}" if case.got[0] != " " else case.got,
                     case.wanted, case.remedy):  # fmt: skip
            assert part in reply.text[place:], (part, reply)
            place = reply.text.index(part, place) + len(part)


def test_parameters_that_are_not_utf8_harm_none_of_their_execution(
    hostile_server: Server, http_caller: HttpCaller, device: str
) -> None:
    """By HTTP alone: over gRPC the server itself does not take them."""
    asked = Message("gather-embed", [texts("fine")])
    alone = http_caller.call(replace(asked, model="embed"))
    before = executions(hostile_server, "gather-embed")
    value = replace(asked, parameters={"pooling": NOT_UTF8})
    name = replace(asked, parameters={NOT_UTF8: 1})
    replies = together(http_caller, [asked, value, asked, name, asked])
    assert executions_since(before, hostile_server, "gather-embed") == 1
    for reply in replies[::2]:
        alike(device, reply, alone)
    for reply in replies[1::2]:
        assert reply.status == "400"
        assert reply.text == (
            "parameters: got bytes that are not UTF-8, wanted UTF-8; encode names and values as "
            "UTF-8"
        )


REFUSED_BY_THE_SERVER = {
    "empty text list": [Tensor("text_input", "BYTES", (0, 1), b"")],
    "no rows of ids": [Tensor("input_ids", "INT64", (0, 4), b"")],
    "ids of another dtype": [Tensor("input_ids", "INT32", (1, 2), bytes(8))],
    "texts for ids": [replace(texts("a"), name="input_ids")],
    "text without a batch": [replace(texts("a"), shape=(1,))],
    "two texts a row": [replace(texts("a", "b"), shape=(1, 2))],
    "fewer values than the shape says": [replace(ids(ROW), shape=(1, 5))],
    "masks for more rows": [ids(ROW), ids([1, 1, 1, 1], [1, 1, 1, 1], name="attention_mask")],
    "more rows than a batch": [texts(*["a"] * 65)],
    "an unknown input": [texts("a"), texts("b", name="image")],
    "no input": [],
}


@pytest.mark.parametrize("case", REFUSED_BY_THE_SERVER)
def test_what_the_server_refuses_itself_is_an_invalid_argument(
    caller: GrpcCaller | HttpCaller, case: str
) -> None:
    reply = caller.call(Message("gather-embed", REFUSED_BY_THE_SERVER[case]))
    assert refused(reply), reply


def test_a_pair_where_the_task_takes_one_text_is_refused(caller: GrpcCaller | HttpCaller) -> None:
    for model in ("embed", "tag", "fill"):
        reply = caller.call(Message(model, pair("[MASK]", "b")))
        assert refused(reply), reply
        assert reply.text == (
            f"text_pair: got a second text, wanted none, as {model} takes one text; leave it out"
        )


def test_a_text_for_a_folder_without_tokenizer_is_refused_and_ids_are_not(
    caller: GrpcCaller | HttpCaller, device: str
) -> None:
    """Texts and ids do not share executions, so these are sent at once but computed in two."""
    text, numbers = (
        Message("gather-bare", inputs) for inputs in ([texts("hello")], [ids(ROW)])
    )  # fmt: skip
    alone = caller.call(replace(numbers, model="embed"))
    by_text, by_ids = together(caller, [text, numbers])
    assert refused(by_text), by_text
    assert by_text.text == (
        "text_input: got a text for a model without a tokenizer, wanted input_ids; "
        f"tokenize at the client, or put the tokenizer into the model folder: {WANTED}"
    )
    assert good(by_ids), by_ids
    alike(device, by_ids, alone)  # the same weights


def test_a_batch_of_nothing_holds_up_no_other(grpc_caller: GrpcCaller) -> None:
    """Triton 24.10 takes input_ids [0, 0] for a batch of no rows and never runs it: it waits until
    its client gives up, and never reaches us. Others are answered meanwhile."""
    nothing = grpc_caller.begin(Message("hidden", [Tensor("input_ids", "INT64", (0, 0), b"")]))
    for _ in range(3):
        assert good(grpc_caller.call(Message("hidden", [ids(ROW)])))
        assert good(grpc_caller.call(Message("hidden", [texts("hello")])))
    nothing.cancel()
    assert good(grpc_caller.call(Message("hidden", [ids(ROW)])))


@pytest.mark.xfail(
    strict=True,
    reason="Triton's Python backend checks the lengths of texts after a batch is made, and fails "
    "the whole execution when those of one request lie",
)
def test_a_text_that_was_cut_off_fails_alone(grpc_caller: GrpcCaller) -> None:
    asked = Message("gather-embed", [texts("fine")])
    whole = texts("cut off")
    cut = replace(asked, inputs=[replace(whole, raw=whole.raw[:-1])])
    first, failed, last = together(grpc_caller, [asked, cut, asked])
    assert refused(failed)
    assert good(first)
    assert good(last)


def test_an_unknown_task_is_a_load_error_that_names_it(
    hostile_server: Server, tmp_path: Path
) -> None:
    [repository] = hostile_server.repositories
    shutil.copytree(repository / "embed", tmp_path / "sing", symlinks=True)
    config = tmp_path / "sing" / "config.pbtxt"
    text = config.read_text()
    assert 'string_value: "embed"' in text
    config.write_text(
        text.replace('string_value: "embed"', 'string_value: "sing"').replace(
            'name: "embed"', 'name: "sing"', 1
        )
    )
    tasks = "embed, hidden, classify, tag, answer, fill, label"
    generating = "generate, translate, summarise, transcribe"
    words = f"task: got 'sing', wanted one of {tasks}, {generating};"
    # Before anything is started …
    with pytest.raises(ConfigurationError, match=words):
        Server([tmp_path])
    # … and by a server that runs already.
    shutil.move(tmp_path / "sing", repository / "sing")
    try:
        with pytest.raises(EndpointError, match=words) as caught:
            hostile_server.load("sing")
    finally:
        shutil.rmtree(repository / "sing")
    assert str(repository) not in str(caught.value)
    assert good(GrpcCaller(hostile_server.endpoint).call(Message("embed", [texts("a")])))
