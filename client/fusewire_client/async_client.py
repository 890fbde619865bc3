"""The asyncio client: it drives the plans by awaiting."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from . import generation, plans
from .base import Base
from .calls import Call, Infer, Plan
from .errors import ClientError, Unavailable
from .transports import AsyncGrpcTransport, AsyncHttpTransport, AsyncTransport

P = ParamSpec("P")
T = TypeVar("T")


def _awaiting(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @functools.wraps(plan)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._drive(plan(self._settings, *args, **kwargs))

    return method


class AsyncClient(Base[AsyncTransport]):
    """asyncio client, for one event loop. The methods of `Client`, awaited."""

    _transports: ClassVar = {"grpc": AsyncGrpcTransport, "http": AsyncHttpTransport}

    ready = _awaiting(plans.ready)
    models = _awaiting(plans.models)
    statistics = _awaiting(plans.statistics)
    infer = _awaiting(plans.infer)
    embed = _awaiting(plans.embed)
    hidden = _awaiting(plans.hidden)
    classify = _awaiting(plans.classify)
    tag = _awaiting(plans.tag)
    answer = _awaiting(plans.answer)
    answers = _awaiting(plans.answers)
    fill = _awaiting(plans.fill)
    fill_masks = _awaiting(plans.fill_masks)

    @overload
    async def generate(
        self, prompt: str | None = ..., *, stream: Literal[False] = ..., **given: Any
    ) -> str: ...
    @overload
    async def generate(
        self, prompt: str | None = ..., *, stream: Literal[True], **given: Any
    ) -> AsyncIterator[str]: ...
    async def generate(
        self,
        prompt: str | None = None,
        *,
        stream: bool = False,
        ids: Sequence[int] | None = None,
        model: str | None = None,
        version: str = "",
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> str | AsyncIterator[str]:
        """As `Client.generate`; streamed: `async for piece in await client.generate(…)`."""
        call = await self._drive(
            generation.request(
                self._settings, prompt, ids, stream, model, version, timeout_s, parameters
            )
        )
        pieces = self._pieces(call)
        return pieces if stream else "".join([piece async for piece in pieces])

    async def close(self) -> None:
        """Close the connections; calls under way end in an error."""
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
        attempts = self._attempts(call)
        while True:
            try:
                return await self._transport.send(call, attempts.remaining_s())
            except Unavailable as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def _pieces(self, call: Infer) -> AsyncIterator[str]:
        attempts = self._attempts(call)
        begun = False
        while True:
            try:
                async with contextlib.aclosing(
                    self._transport.stream(call, attempts.remaining_s())
                ) as responses:
                    async for outputs in responses:
                        begun = True
                        yield generation.piece(outputs)
                return
            except Unavailable as error:
                if begun:
                    raise
                await asyncio.sleep(attempts.wait_s(error))
