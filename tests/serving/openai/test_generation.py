"""From prompts to the pieces of choices at the OpenAI endpoint, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from fusewire.serving.openai.completions import CompletionForm
from fusewire.serving.openai.errors import ApiError
from fusewire.serving.openai.generation import Generation, Piece, Token
from fusewire.serving.openai.generation_bodies import CompletionRequest
from fusewire_client.calls import Call
from fusewire_client.errors import InvalidArgument


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
    assert error.body["error"]["param"] == "prompt"
    assert error.body["error"]["message"].startswith("prompt: got no tokens")


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
    likeliest = [("<5>", -1.0), ("<6>", -2.0)][: int(count)]
    assert piece.tokens == [Token("<8>", -3.0, likeliest)]


def test_of_tokens_with_one_text_the_taken_one_and_then_the_likeliest_is_returned() -> None:
    part = "\ufffd"  # what any part of a character decodes to
    likeliest = [("a", -1.0), (part, -2.0), (part, -3.0)]
    tokens = [Token(part, -3.0, likeliest), Token("a", -1.0, likeliest)]
    (taken, other) = CompletionForm().whole(Piece(0, tokens=tokens))["logprobs"]["top_logprobs"]
    assert taken == {part: -3.0, "a": -1.0}
    assert other == {"a": -1.0, part: -2.0}


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
