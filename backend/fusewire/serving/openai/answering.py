"""Answers a generation, as a whole or as server-sent events, until its client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fusewire.serving.openai import errors
from fusewire.serving.openai.generation import Generation, Piece
from fusewire.serving.openai.generation_bodies import StreamOptions
from fusewire.serving.openai.in_flight import Call

_log = logging.getLogger(__name__)
T = TypeVar("T")
# The answer to a request that generates nothing: the body, and the number of computed tokens.
Computed = tuple[Any, int]
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_DONE = "data: [DONE]\n\n"
_END = "}\n\n"  # end of an event
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Form(Protocol):
    """The format of an endpoint's choices."""

    prefix: str  # prefix of ids
    whole_object: str
    streamed_object: str

    def whole(self, piece: Piece) -> dict[str, Any]: ...
    def streamed(self, piece: Piece) -> dict[str, Any]: ...


class ClientGone(Exception):
    """The client has disconnected."""


async def whole(
    request: Request, model: str, generation: Generation, form: Form, prompt_logprobs: bool
) -> Response:
    choices = await unless_gone(request, generation.whole())
    body = beginning(model, form.prefix, form.whole_object)
    body["choices"] = [form.whole(choice) for choice in choices]
    if prompt_logprobs:
        for written, choice in zip(body["choices"], choices, strict=True):
            written["prompt_logprobs"] = choice.prompt_logprobs
    usage = request.state.call.usage = generation.usage
    return JSONResponse(body | {"usage": usage})


async def streamed(
    request: Request, model: str, generation: Generation, form: Form, options: StreamOptions
) -> Response:
    """Returns the response once the first piece has come, so that an earlier error has its own
    status."""
    call: Call = request.state.call
    head = beginning(model, form.prefix, form.streamed_object)
    events = _events(head, generation, form, options, call)
    first = await unless_gone(request, anext(events))
    return _EventStream(first, events, call)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which is cancelled when the client disconnects."""
    task = asyncio.ensure_future(work)
    tasks = task, asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _EventStream(StreamingResponse):
    """Cancels the generation when the client disconnects, at any point."""

    def __init__(self, first: str, events: AsyncGenerator[str], call: Call) -> None:
        rest = _rest(first, events, call)
        super().__init__(rest, headers=_HEADERS, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            await super().__call__(scope, receive, send)


async def _rest(first: str, events: AsyncGenerator[str], call: Call) -> AsyncGenerator[str]:
    yield first
    try:
        while (event := await call.unless_ended(lambda: anext(events, None))) is not None:
            yield event
    except Exception as error:  # the status is already sent, so the last event is the error
        if not isinstance(error, errors.ApiError):
            _log.exception("a stream failed")
        yield _event(errors.of(error).body)


async def _events(
    head: dict[str, Any], generation: Generation, form: Form, options: StreamOptions, call: Call
) -> AsyncGenerator[str]:
    begin, usage = _event(head).removesuffix(_END) + ',"choices":', ""  # same for all events
    try:
        async with contextlib.aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                if options.include_usage:  # in OpenAI's API null in all chunks but the last
                    now = generation.usage if options.continuous_usage_stats else None
                    usage = f',"usage":{_json(now)}'
                yield f"{begin}[{_json(form.streamed(piece))}]{usage}{_END}"
    finally:  # also for an incomplete answer, but not for one that did not begin
        if (so_far := generation.usage)["prompt_tokens"]:
            call.usage = so_far
    if options.include_usage:
        yield f'{begin}[],"usage":{_json(generation.usage)}{_END}'
    yield _DONE


def beginning(model: str, prefix: str, kind: str) -> dict[str, Any]:
    """Returns the first fields of every answer."""
    return {
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def _event(body: dict[str, Any]) -> str:
    return f"data: {_json(body)}\n\n"


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
