"""From prompts to the pieces of choices at the OpenAI endpoint, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from fusewire.errors import InvalidInput
from fusewire.serving.openai.chat import ChatForm
from fusewire.serving.openai.completions import CompletionForm
from fusewire.serving.openai.errors import ApiError
from fusewire.serving.openai.generation import Generation, Piece, Token, token_at
from fusewire.serving.openai.generation_bodies import CompletionRequest
from fusewire_client.calls import Call, Infer
from fusewire_client.errors import InvalidArgument, Overloaded, QueueFull


class RefusesAfterAPiece:
    """A transport to a model that has written for one prompt when it refuses another."""

    async def stream(self, call: Call, timeout_s: float) -> AsyncIterator[dict[str, np.ndarray]]:
        yield {
            "text_output": np.array([b"once"], np.object_),
            "finish_reason": np.array([b"None"], np.object_),
            "num_input_tokens": np.array([1]),
            "num_cached_tokens": np.array([0]),
            "num_output_tokens": np.array([1]),
        }
        raise InvalidArgument("text_input: got no tokens, wanted at least one; send a prompt")


def test_an_error_behind_the_first_piece_names_what_the_client_sent() -> None:
    transport: Any = RefusesAfterAPiece()
    names = {"text_input": "prompt"}
    generation = Generation(transport, "tiny", ["a", ""], {"n": 1}, names, stream=True, sender={})

    async def read() -> list[str | ApiError]:
        received: list[str | ApiError] = []
        try:
            async for piece in generation.pieces():
                received.append(piece.text)
        except ApiError as error:
            received.append(error)
        return received

    first, *_, error = asyncio.run(read())
    assert first == "once"
    assert isinstance(error, ApiError)
    assert error.body["error"]["param"] in ("prompt[0]", "prompt[1]")
    assert error.body["error"]["message"].startswith(f"{error.body['error']['param']}: got no")


@pytest.mark.parametrize("aligned", [True, "true", 1])
def test_an_alignment_is_refused_with_where_to_get_it(aligned: Any) -> None:
    body = CompletionRequest(model="tiny", prompt="a", alignment=aligned)
    with pytest.raises(InvalidInput, match=r"alignment: got .*; remove it, or .*return_alignment"):
        body.parameters(None)
    without = CompletionRequest(model="tiny", prompt="a", alignment=False).parameters(None)
    assert "alignment" not in without
    described = CompletionRequest.model_json_schema()["properties"]
    assert "alignment" not in described
    assert "num_beams" in described


@pytest.mark.parametrize(
    ("given", "near"),
    [("max_new_token", "max_new_tokens or "), ("zzz", "those of /openapi.json"), ("x" * 10**7, "")],
    ids=["near", "far", "long"],
)
def test_an_unknown_parameter_is_refused_with_those_that_are_near(given: str, near: str) -> None:
    body = CompletionRequest(model="tiny", prompt="a", **{given: 1})
    with pytest.raises(InvalidInput, match=f"wanted a supported parameter: {near}"):
        body.parameters(None)


class Answers:
    """A transport to a model that took a token of rank 3."""

    async def stream(self, call: Call, timeout_s: float) -> AsyncIterator[dict[str, np.ndarray]]:
        place = {
            token: {"logprob": -float(rank), "rank": rank, "decoded_token": f"<{token}>"}
            for token, rank in (("8", 3), ("5", 1), ("6", 2))
        }
        yield {
            "text_output": np.array([b"<8>"], np.object_),
            "finish_reason": np.array([b"length"], np.object_),
            "logprobs": np.array([json.dumps([place]).encode()], np.object_),
            "num_input_tokens": np.array([1]),
            "num_cached_tokens": np.array([0]),
            "num_output_tokens": np.array([1]),
        }


@pytest.mark.parametrize("count", [2, "2", 0])
def test_as_many_of_the_likeliest_are_returned_as_were_asked_for(count: int | str) -> None:
    transport: Any = Answers()
    parameters = {"n": 1, "logprobs": count}
    generation = Generation(transport, "tiny", ["a"], parameters, {}, stream=False, sender={})
    [piece] = asyncio.run(generation.whole())
    likeliest = [(b"<5>", -1.0), (b"<6>", -2.0)][: int(count)]
    assert piece.tokens == [Token(b"<8>", -3.0, likeliest)]


def test_of_tokens_with_one_text_the_taken_one_and_then_the_likeliest_is_returned() -> None:
    likeliest = [(b"a", -1.0), (b"", -2.0), (b"", -3.0)]  # ids that the tokenizer has no text for
    tokens = [Token(b"", -3.0, likeliest), Token(b"a", -1.0, likeliest)]
    (taken, other) = CompletionForm().whole(Piece(0, tokens=tokens))["logprobs"]["top_logprobs"]
    assert taken == {"": -3.0, "a": -1.0}
    assert other == {"a": -1.0, "": -2.0}


def test_parts_of_characters_are_told_apart_by_their_bytes() -> None:
    euro = "\u20ac".encode()
    entries = {
        token: {"logprob": -1.0, "rank": 1, "decoded_token": "\ufffd", "bytes": [byte]}
        for token, byte in enumerate(euro)
    }
    place: Any = {"7": {"logprob": -2.0, "rank": 4, "decoded_token": " a"}, **entries}
    token = token_at(place, 3)
    assert token == Token(b" a", -2.0, [(bytes([byte]), -1.0) for byte in euro])
    (places,) = CompletionForm().whole(Piece(0, tokens=[token]))["logprobs"]["top_logprobs"]
    names = [f"bytes:\\x{byte:02x}" for byte in euro]
    assert places == {" a": -2.0} | dict.fromkeys(names, -1.0)
    (chosen,) = ChatForm().whole(Piece(0, tokens=[token]))["logprobs"]["content"]
    assert (chosen["token"], chosen["bytes"]) == (" a", [*b" a"])
    assert [(one["token"], one["bytes"]) for one in chosen["top_logprobs"]] == [
        (f"\\x{byte:02x}", [byte]) for byte in euro
    ]


def test_parts_of_a_character_begin_where_it_does() -> None:
    form = CompletionForm()
    spelled = [b"a", b" \xe2", b"\x82", b"\xac", b"b"]
    offsets: list[int] = []
    for part in (spelled[:2], spelled[2:]):  # of a stream
        tokens = [Token(each, -1.0) for each in part]
        offsets += form.streamed(Piece(0, tokens=tokens))["logprobs"]["text_offset"]
    assert offsets == [0, 1, 2, 2, 3]
    broken = [Token(each, -1.0) for each in (b"\xe2", b"a", b"\x82", b"b")]
    written = CompletionForm().whole(Piece(0, tokens=broken))  # "\ufffda\ufffdb"
    assert written["logprobs"]["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({}, True),
        ({"use_beam_search": False}, True),
        ({"num_beams": 1}, True),
        ({"num_beams": "1", "n": 3}, True),
        ({"use_beam_search": True, "n": 4}, None),
        ({"num_beams": 4}, None),
        ({"num_beams": "four"}, None),  # refused later
    ],
)
def test_tokens_are_drawn_unless_beams_are_asked_for(given: dict[str, Any], drawn: object) -> None:
    body = CompletionRequest(model="m", prompt="x", **given)
    assert body.parameters(None).get("do_sample") is drawn


def test_n_has_the_name_of_hugging_face_too() -> None:
    body = CompletionRequest(model="m", prompt="x", num_return_sequences=3)
    assert body.n == 3
    given = body.parameters(None)
    assert given["n"] == 3
    assert "num_return_sequences" not in given
    both = CompletionRequest(model="m", prompt="x", n=3, num_return_sequences=3)
    assert both.parameters(None).keys() >= {"n", "num_return_sequences"}  # refused by the model


def test_a_completion_has_a_default_length_unless_it_names_one() -> None:
    default = CompletionRequest(model="m", prompt="x").parameters(None)
    assert default["default_max_new_tokens"] == 16
    assert "max_tokens" not in default
    for name in ("max_tokens", "max_new_tokens"):
        given = CompletionRequest(model="m", prompt="x", **{name: 5}).parameters(None)
        assert given[name] == 5
        assert "default_max_new_tokens" not in given


class TakesTwo:
    """A transport to a model that has too much to do for a third request."""

    def __init__(self, takes: int = 2, refusal: type[QueueFull] = Overloaded) -> None:
        self.takes, self.under_way, self.asked, self.refusal = takes, 0, 0, refusal
        self.times: list[float] = []

    async def stream(self, call: Infer, timeout_s: float) -> AsyncIterator[dict[str, np.ndarray]]:
        self.asked += 1
        parameters = json.loads(call.inputs["sampling_parameters"][0])
        self.times.append(parameters["timeout_seconds"])
        if self.under_way >= self.takes:
            raise self.refusal("queue: got a predicted wait of 9 s; try again in 5.0 s")
        self.under_way += 1
        await asyncio.sleep(0.02)
        self.under_way -= 1
        yield {
            "text_output": np.array([call.inputs["text_input"][0]], np.object_),
            "finish_reason": np.array([b"stop"], np.object_),
            "num_input_tokens": np.array([1]),
            "num_cached_tokens": np.array([0]),
            "num_output_tokens": np.array([1]),
        }


@pytest.mark.parametrize("refusal", [Overloaded, QueueFull])
def test_the_prompts_of_one_call_do_not_refuse_each_other(refusal: type[QueueFull]) -> None:
    transport: Any = TakesTwo(refusal=refusal)
    prompts = [str(number) for number in range(9)]
    parameters = {"n": 1, "timeout_seconds": 60.0}
    generation = Generation(transport, "tiny", prompts, parameters, {}, stream=False, sender={})
    pieces = asyncio.run(generation.whole())
    assert [piece.text for piece in pieces] == prompts
    assert transport.asked < 30
    assert 59 < min(transport.times) < 60  # what was left of the call's


def test_a_call_of_which_no_prompt_is_taken_is_refused() -> None:
    transport: Any = TakesTwo(0)
    parameters = {"n": 1, "timeout_seconds": 60.0}
    generation = Generation(transport, "tiny", ["a"] * 9, parameters, {}, stream=False, sender={})
    with pytest.raises(ApiError) as refused:
        asyncio.run(generation.whole())
    assert refused.value.status_code == 429
    assert transport.asked == 9
