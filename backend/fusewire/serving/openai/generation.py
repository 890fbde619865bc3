"""One request for generated text, of one prompt or several, as pieces of its choices.

Each prompt is a request to the model, on a stream of its own: closing the stream cancels it, which
frees its slot and pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from fusewire_client.calls import Infer
from fusewire_client.errors import ClientError
from fusewire_client.transports import AsyncTransport

from fusewire.serving.openai import errors

T = TypeVar("T")
# The model ends requests by their own `timeout_seconds`; this only has to be no shorter.
_LONGEST_S = 2 * 86400.0
_OUTPUTS = ("finish_reason", "num_input_tokens", "num_output_tokens")


@dataclass(frozen=True)
class Token:
    """A token taken, and the likeliest ones at its place, likeliest first."""

    text: str
    logprob: float
    likeliest: Sequence[tuple[str, float]]


@dataclass
class Piece:
    """What was added to one choice."""

    choice: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)  # where log-probabilities were asked for
    finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason


class Generation:
    """The choices of all prompts: `n` to each, numbered prompt by prompt."""

    def __init__(
        self,
        transport: AsyncTransport,
        model: str,
        prompts: Sequence[str] | Sequence[list[int]],
        parameters: Mapping[str, Any],
        names: Mapping[str, str],
        *,
        stream: bool,
    ) -> None:
        """`parameters`: the model's sampling parameters, `n` among them. `names`: the model's names
        -> those the client used, for errors. `stream`: pieces as they come, else each prompt's
        choices whole."""
        self._n = parameters["n"]
        self._logprobs = parameters.get("logprobs")  # a number, or one that the model refuses
        self._names = names
        self._transport = transport
        self._calls = [self._call(model, prompt, parameters, stream) for prompt in prompts]
        self._prompt_tokens = [0] * len(prompts)
        self._completion_tokens = 0

    @property
    def usage(self) -> dict[str, int]:
        """The tokens so far."""
        prompt, completion = sum(self._prompt_tokens), self._completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Until every choice had one with a finish_reason; the model's error as ApiError. Leaving
        early cancels what has not ended."""
        streams = [self._of_prompt(index) for index in range(len(self._calls))]
        try:
            async with contextlib.aclosing(together(streams)) as merged:
                async for pieces in merged:
                    for piece in pieces:
                        yield piece
        except ClientError as error:
            raise errors.of(error, self._names) from None

    async def whole(self) -> list[Piece]:
        """Every choice from beginning to end, in order."""
        choices = [Piece(index) for index in range(len(self._calls) * self._n)]
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.choice].add(piece)
        return choices

    async def _of_prompt(self, prompt: int) -> AsyncGenerator[list[Piece]]:
        ended: set[int] = set()
        stream = self._transport.stream(self._calls[prompt], _LONGEST_S)
        async with contextlib.aclosing(stream) as responses:
            async for outputs in responses:
                self._prompt_tokens[prompt] = int(outputs["num_input_tokens"][0])
                self._completion_tokens += int(outputs["num_output_tokens"].sum())
                pieces = [self._piece(outputs, index) for index in range(self._n)]
                news = [p for index, p in enumerate(pieces) if index not in ended and _says(p)]
                ended.update(index for index, p in enumerate(pieces) if p.finish_reason)
                for piece in news:
                    piece.choice += prompt * self._n
                yield news

    def _piece(self, outputs: Mapping[str, np.ndarray], index: int) -> Piece:
        reason = outputs["finish_reason"][index].decode()
        return Piece(
            index,
            outputs["text_output"][index].decode(),
            []
            if self._logprobs is None
            else _tokens(outputs["logprobs"][index], int(self._logprobs)),
            None if reason == "None" else reason,
        )

    def _call(
        self, model: str, prompt: str | list[int], parameters: Mapping[str, Any], stream: bool
    ) -> Infer:
        outputs = _OUTPUTS if self._logprobs is None else (*_OUTPUTS, "logprobs")
        inputs = (
            {"text_input": np.array([prompt.encode()], np.object_)}
            if isinstance(prompt, str)
            else {"input_ids": np.array(prompt, np.int64)}
        )
        inputs["sampling_parameters"] = np.array([json.dumps(parameters).encode()], np.object_)
        inputs |= {"stream": np.array([stream]), "exclude_input_in_output": np.array([True])}
        inputs |= {f"return_{name}": np.array([True]) for name in outputs}
        return Infer(model, inputs, ("text_output", *outputs))


async def together(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """What several streams give, as it comes; the first error ends all of them."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as stream:
            async for each in stream:
                yield each
        return
    arrived: asyncio.Queue[T | _Ended] = asyncio.Queue(len(streams))

    async def carry(stream: AsyncGenerator[T]) -> None:
        error = None
        try:
            async with contextlib.aclosing(stream):
                async for each in stream:
                    await arrived.put(each)
        except Exception as raised:
            error = raised
        await arrived.put(_Ended(error))

    carriers = [asyncio.create_task(carry(stream)) for stream in streams]
    try:
        left = len(carriers)
        while left:
            news = await arrived.get()
            if not isinstance(news, _Ended):
                yield news
            elif news.error is not None:
                raise news.error
            else:
                left -= 1
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


@dataclass(frozen=True)
class _Ended:
    error: Exception | None


def _says(piece: Piece) -> bool:
    return bool(piece.text or piece.tokens or piece.finish_reason)


def _tokens(text: bytes, likeliest: int) -> list[Token]:
    """From the model's JSON: at each place the token taken, then as many of the likeliest, which it
    may be one of."""
    tokens = []
    for place in json.loads(text):
        entries = list(place.values())
        asked = [entry for entry in entries if entry["rank"] and entry["rank"] <= likeliest]
        ranked = sorted(asked, key=lambda entry: entry["rank"])
        others = [(entry["decoded_token"], entry["logprob"]) for entry in ranked]
        tokens.append(Token(entries[0]["decoded_token"], entries[0]["logprob"], others))
    return tokens
