"""One request for generated text, with one prompt or several, as pieces of its choices.

Each prompt is a request to the model, on its own stream. Closing the stream cancels the request,
which frees its slot and KV pages. A request that the model refuses because it is overloaded,
possibly by the other prompts, is sent again when one of them has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from fusewire_client.calls import Infer
from fusewire_client.errors import ClientError, QueueFull
from fusewire_client.transports import AsyncTransport
from fusewire_client.turns import TaskTurns

from fusewire.serving.openai import errors
from fusewire.serving.openai.bodies import entry

T = TypeVar("T")
# The model ends requests according to their own `timeout_seconds`; this limit must not be shorter.
_LONGEST_S = 2 * 86400.0
_LEAST_S = 0.001  # least time limit of a call, for requests that are already late
_OUTPUTS = ("finish_reason", "num_input_tokens", "num_cached_tokens", "num_output_tokens")
# All outputs that may be requested of a model.
OUTPUTS = ("text_output", *_OUTPUTS, "logprobs", "prompt_logprobs")


# The model's JSON of one position, by token id: logprob, rank, decoded_token, and bytes for part of
# a character.
Place = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Token:
    """A chosen token, and the likeliest tokens at its position, likeliest first. Each is given by
    its bytes, which need not be whole characters."""

    spelled: bytes
    logprob: float | None  # None for the first token of a prompt
    likeliest: Sequence[tuple[bytes, float]] = ()


@dataclass
class Piece:
    """What was added to one choice."""

    choice: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)  # where log probabilities are requested
    finish_reason: str | None = None
    prompt_logprobs: list[Place | None] | None = None  # where requested

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.finish_reason = piece.finish_reason
        self.prompt_logprobs = piece.prompt_logprobs


class Generation:
    """The choices of all prompts: `n` for each, numbered prompt by prompt."""

    def __init__(
        self,
        transport: AsyncTransport,
        model: str,
        prompts: Sequence[str] | Sequence[list[int]],
        parameters: Mapping[str, Any],
        names: Mapping[str, str],
        *,
        stream: bool,
        sender: Mapping[str, str],
    ) -> None:
        """`parameters`: the model's sampling parameters, including `n`. `names`: the model's names
        -> those in the client's request, for errors. `stream`: return pieces as they come,
        otherwise the whole choices of each prompt. `sender`: the model's request parameters that
        identify the sender."""
        self._n = parameters["n"]
        self._logprobs = parameters.get("logprobs")  # a number, or a value that the model refuses
        self._scores_prompt = parameters.get("prompt_logprobs") is not None
        self._names = names
        self._transport = transport
        self._sender = sender
        self._model, self._prompts, self._parameters = model, prompts, parameters
        self._stream = stream
        self._turns = TaskTurns(len(prompts))
        self._prompt_tokens = [0] * len(prompts)
        self._prompt_logprobs: list[list[Place | None] | None] = [None] * len(prompts)
        self._cached_tokens = [0] * len(prompts)
        self._completion_tokens = 0

    @property
    def usage(self) -> dict[str, Any]:
        """The number of tokens so far."""
        prompt, completion = sum(self._prompt_tokens), self._completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens)},
        }

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yields pieces until every choice has had one with a finish_reason. Raises the model's
        error as ApiError. Closing the generator early cancels the choices that have not ended."""
        streams = [self._of_prompt(index) for index in range(len(self._prompts))]
        async with contextlib.aclosing(together(streams)) as merged:
            async for pieces in merged:
                for piece in pieces:
                    yield piece

    async def whole(self) -> list[Piece]:
        """Returns all complete choices in order."""
        choices = [Piece(index) for index in range(len(self._prompts) * self._n)]
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.choice].add(piece)
        return choices

    async def _of_prompt(self, prompt: int) -> AsyncGenerator[list[Piece]]:
        ended: set[int] = set()
        try:
            async with contextlib.aclosing(self._responses(self._prompts[prompt])) as responses:
                async for outputs in responses:
                    self._count(prompt, outputs)
                    pieces = [self._piece(outputs, index) for index in range(self._n)]
                    news = [p for index, p in enumerate(pieces) if index not in ended and _says(p)]
                    ended.update(index for index, p in enumerate(pieces) if p.finish_reason)
                    for piece in news:
                        piece.choice += prompt * self._n
                        piece.prompt_logprobs = self._prompt_logprobs[prompt]
                    yield news
        except ClientError as error:
            raise errors.of(error, self._names_of(prompt)) from None

    def _count(self, prompt: int, outputs: Mapping[str, np.ndarray]) -> None:
        self._prompt_tokens[prompt] = int(outputs["num_input_tokens"][0])
        self._cached_tokens[prompt] = int(outputs["num_cached_tokens"][0])
        self._completion_tokens += int(outputs["num_output_tokens"].sum())
        if self._scores_prompt and self._prompt_logprobs[prompt] is None:
            self._prompt_logprobs[prompt] = json.loads(outputs["prompt_logprobs"][0])

    def _names_of(self, prompt: int) -> Mapping[str, str]:
        """Returns the names in the client's request, with the place of a prompt among several."""
        field = "text_input" if isinstance(self._prompts[prompt], str) else "input_ids"
        return {**self._names, field: entry(self._names.get(field, field), prompt, self._prompts)}

    async def _responses(self, prompt: str | list[int]) -> AsyncGenerator[Mapping[str, np.ndarray]]:
        began, own_s = time.monotonic(), self._parameters.get("timeout_seconds")
        left_s, begun, again = _LONGEST_S, False, False
        parameters = self._parameters
        while True:
            turn = await self._turns.begin()
            if again and isinstance(own_s, (int, float)):
                left_s = max(own_s - (time.monotonic() - began), _LEAST_S)
                parameters = {**self._parameters, "timeout_seconds": left_s}
            again = True
            stream = self._transport.stream(self._call(prompt, parameters), _LONGEST_S)
            try:
                async with contextlib.aclosing(stream) as responses:
                    async for outputs in responses:
                        begun = True
                        yield outputs
            except QueueFull:
                if begun or not await self._turns.refused(turn, left_s):
                    raise
            except BaseException:
                self._turns.end(answered=False)
                raise
            else:
                self._turns.end(answered=True)
                return

    def _piece(self, outputs: Mapping[str, np.ndarray], index: int) -> Piece:
        reason = outputs["finish_reason"][index].decode()
        return Piece(
            index,
            outputs["text_output"][index].decode(),
            self._tokens(outputs, index),
            None if reason == "None" else reason,
        )

    def _tokens(self, outputs: Mapping[str, np.ndarray], index: int) -> list[Token]:
        if self._logprobs is None:
            return []
        places = json.loads(outputs["logprobs"][index])
        return [token_at(place, int(self._logprobs)) for place in places]

    def _call(self, prompt: str | list[int], parameters: Mapping[str, Any]) -> Infer:
        outputs = (
            *_OUTPUTS,
            *(("logprobs",) if self._logprobs is not None else ()),
            *(("prompt_logprobs",) if self._scores_prompt else ()),
        )
        inputs = (
            {"text_input": np.array([prompt.encode()], np.object_)}
            if isinstance(prompt, str)
            else {"input_ids": np.array(prompt, np.int64)}
        )
        inputs["sampling_parameters"] = np.array([json.dumps(parameters).encode()], np.object_)
        inputs |= {"stream": np.array([self._stream]), "exclude_input_in_output": np.array([True])}
        inputs |= {f"return_{name}": np.array([True]) for name in outputs}
        return Infer(self._model, inputs, ("text_output", *outputs), self._sender)


async def together(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """Yields the pieces of several streams as they come. The first error ends all of them."""
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


def token_at(place: Place, count: int) -> Token:
    """Returns a token from the model's JSON of one position: the chosen token and the `count`
    likeliest ones, among which it may be."""
    taken, *others = entries = list(place.values())
    likeliest = others if len(entries) > count else sorted(entries, key=lambda e: e["rank"])
    return Token(
        _spelled(taken),
        taken["logprob"],
        [(_spelled(entry), entry["logprob"]) for entry in likeliest[:count]],
    )


def _spelled(entry: Mapping[str, Any]) -> bytes:
    part = entry.get("bytes")
    return entry["decoded_token"].encode() if part is None else bytes(part)
