"""The asyncio client, which runs plans by awaiting their calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from . import encoding, extraction, generation, plans, rewriting, speech
from .base import Base
from .calls import Call, Infer, Plan, placing
from .errors import ClientError, NotFound, QueueFull, Unavailable
from .generation import Streaming
from .grpc_transports import AsyncGrpcTransport
from .http_transports import AsyncHttpTransport
from .overloads import AsyncChat, AsyncGenerate
from .plans import Arrays, with_names
from .signatures import show
from .transports import AsyncTransport
from .turns import TaskTurns

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: Any = await self._drive(plan(self._settings, *args, **kwargs))
        if isinstance(result, Streaming):
            result = self._pieces(result)
        found: T = result
        return found

    show(method, plan)
    return method


class AsyncClient(Base[AsyncTransport]):
    """asyncio client for one event loop: it has the methods of `Client`, as coroutines."""

    _transports: ClassVar = {"grpc": AsyncGrpcTransport, "http": AsyncHttpTransport}

    ready = _awaiting(plans.ready)
    models = _awaiting(plans.models)
    statistics = _awaiting(plans.statistics)
    infer = _awaiting(plans.infer)
    embed = _awaiting(encoding.embed)
    hidden = _awaiting(encoding.hidden)
    classify = _awaiting(encoding.classify)
    label = _awaiting(encoding.label)
    rerank = _awaiting(encoding.rerank)
    tag = _awaiting(extraction.tag)
    answer = _awaiting(extraction.answer)
    answers = _awaiting(extraction.answers)
    fill = _awaiting(extraction.fill)
    fill_masks = _awaiting(extraction.fill_masks)

    translate = _awaiting(rewriting.translate)
    summarise = _awaiting(rewriting.summarise)
    transcribe = _awaiting(speech.transcribe)

    generate: AsyncGenerate = cast(Any, _awaiting(generation.generate))
    chat: AsyncChat = cast(Any, _awaiting(generation.chat))

    async def close(self) -> None:
        """Closes the connections; running calls end in an error."""
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _drive(self, plan: Plan[T]) -> T:
        self._check_open()
        try:
            calls = next(plan)
            while True:
                try:
                    answers = await self._send_all(calls)
                except ClientError as error:
                    calls = plan.throw(error)
                else:
                    calls = plan.send(answers)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            with placing(calls[0]):
                return [await self._send(calls[0])]
        turns = TaskTurns(self._concurrency)
        tasks = [asyncio.ensure_future(self._send_in_turn(call, turns)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # Wait for the cancelled tasks, so that a cancelled method leaves nothing running.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_in_turn(self, call: Call, turns: TaskTurns) -> Any:
        """Sends one of several concurrent calls. Its timeout begins with its first turn."""
        attempts = None
        while True:
            turn = await turns.begin()
            attempts = attempts or self._attempts(call)
            try:
                left_s = attempts.remaining_s()
                told = self._told(call, left_s)
                with placing(call):
                    if isinstance(told, Infer) and told.decoupled:
                        stream = self._transport.stream(told, left_s)
                        async with contextlib.aclosing(stream):
                            answer: Any = [outputs async for outputs in stream]
                    else:
                        answer = await self._transport.send(told, left_s)
            except QueueFull as error:
                if not await turns.refused(turn, left_s):
                    await asyncio.sleep(attempts.wait_s(error))
            except Unavailable as error:
                turns.end(answered=False)
                await asyncio.sleep(attempts.wait_s(error))
            except BaseException:
                turns.end(answered=False)
                raise
            else:
                turns.end(answered=True)
                return answer

    async def _send(self, call: Call) -> Any:
        if isinstance(call, Infer) and call.decoupled:
            return [outputs async for outputs in self._responses(call)]
        attempts = self._attempts(call)
        while True:
            try:
                left_s = attempts.remaining_s()
                return await self._transport.send(self._told(call, left_s), left_s)
            except Unavailable as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def _pieces(self, streaming: Streaming) -> AsyncIterator[Any]:
        try:
            async with contextlib.aclosing(self._responses(streaming.call)) as responses:
                async for outputs in responses:
                    for piece in streaming.pieces(outputs):
                        yield piece
        except NotFound as error:
            plan = with_names(self._settings, error, streaming.call)
            raise (await self._drive(plan)) from None

    async def _responses(self, call: Infer) -> AsyncGenerator[Arrays]:
        attempts = self._attempts(call)
        started = False
        while True:
            try:
                left_s = attempts.remaining_s()
                async with contextlib.aclosing(
                    self._transport.stream(self._told(call, left_s), left_s)
                ) as responses:
                    async for outputs in responses:
                        started = True
                        yield outputs
                return
            except Unavailable as error:
                if started:
                    raise
                await asyncio.sleep(attempts.wait_s(error))
