"""The asyncio client: it drives the plans by awaiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from . import encoding, extraction, generation, plans, rewriting
from .base import Base
from .calls import Call, Infer, Plan
from .errors import ClientError, NotFound, Unavailable
from .generation import Streaming
from .overloads import AsyncChat, AsyncGenerate
from .plans import Arrays, with_names
from .signatures import show
from .transports import AsyncGrpcTransport, AsyncHttpTransport, AsyncTransport

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
    """asyncio client, for one event loop: the methods of `Client`, awaited."""

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

    generate: AsyncGenerate = cast(Any, _awaiting(generation.generate))
    chat: AsyncChat = cast(Any, _awaiting(generation.chat))

    async def close(self) -> None:
        """Close the connections; running calls end in an error."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _drive(self, plan: Plan[T]) -> T:
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
        room = asyncio.Semaphore(self._concurrency)

        async def send(call: Call) -> Any:
            async with room:
                return await self._send(call)

        tasks = [asyncio.ensure_future(send(call)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # Their ends are awaited, so that a cancelled method leaves nothing running.
            await asyncio.gather(*tasks, return_exceptions=True)

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
