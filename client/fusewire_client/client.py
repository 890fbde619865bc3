"""The two clients: they drive the plans, one by blocking, one by awaiting."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from . import plans
from .calls import Ask, Call, Infer, Plan
from .errors import ClientError, InvalidArgument, Unavailable
from .retry import Attempts, Retry
from .transports import (
    AsyncGrpcTransport,
    AsyncHttpTransport,
    AsyncTransport,
    GrpcTransport,
    HttpTransport,
    Transport,
)
from .wire import check_parameters

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")  # the transport
_AT_ONCE = Retry(retries=0)


def _blocking(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(plan)  # its docstring and parameters; help() shows `settings` as self
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive(plan(self._settings, *args, **kwargs))

    return method


def _awaiting(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @functools.wraps(plan)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._drive(plan(self._settings, *args, **kwargs))

    return method


class _Base(Generic[C]):
    """Options of both clients.

    address: host:port, of the protocol's port (Triton: 8001 gRPC, 8000 HTTP).
    model: which model to ask where a call names none; None: the server's only one for the task.
    timeout_s: of one call, retries included.
    retries: how often an `Unavailable` is tried again; backoff_s: the first wait's upper bound.
    max_batch: most texts in one request, not above the model's max_batch_size.
    concurrency: most requests of this client under way at once within one method call.
    headers: sent with each request (authorisation, keys of restricted APIs).
    """

    _transports: ClassVar[dict[str, Callable[[str, bool, dict[str, str], int], Any]]]

    def __init__(
        self,
        address: str,
        *,
        protocol: Literal["grpc", "http"] = "grpc",
        model: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        backoff_s: float = 0.1,
        max_batch: int = 32,
        concurrency: int = 32,
        tls: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        if protocol not in self._transports:
            raise InvalidArgument(f"protocol: got {protocol!r}, wanted 'grpc' or 'http'; choose")
        for name, value in (
            ("timeout_s", timeout_s),
            ("max_batch", max_batch),
            ("concurrency", concurrency),
        ):
            if not value > 0:
                raise InvalidArgument(f"{name}: got {value}, wanted more than 0; raise it")
        if retries < 0 or backoff_s < 0:
            raise InvalidArgument(
                f"retries, backoff_s: got {retries}, {backoff_s}, wanted 0 or more; raise them"
            )
        self._settings = plans.Settings(model, max_batch, {})
        self._timeout_s = timeout_s
        self._retry = Retry(retries, backoff_s)
        self._concurrency = concurrency
        self._transport: C = self._transports[protocol](
            address, tls, dict(headers or {}), concurrency
        )

    def _attempts(self, call: Call) -> Attempts:
        if isinstance(call, Infer):
            check_parameters(call.parameters)
        if call.timeout_s is not None and not call.timeout_s > 0:
            raise InvalidArgument(f"timeout_s: got {call.timeout_s}, wanted more than 0; raise it")
        # "Is it ready?" is answered by "no", not by waiting.
        at_once = isinstance(call, Ask) and call.about == "ready"
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return Attempts(_AT_ONCE if at_once else self._retry, timeout_s)


class Client(_Base[Transport]):
    """Blocking client; threads may share it. Methods: see `plans`, or `help(Client.embed)`."""

    _transports: ClassVar = {"grpc": GrpcTransport, "http": HttpTransport}

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:  # made when a method first has several requests
        return ThreadPoolExecutor(self._concurrency, "fusewire-client")

    ready = _blocking(plans.ready)
    models = _blocking(plans.models)
    statistics = _blocking(plans.statistics)
    infer = _blocking(plans.infer)
    embed = _blocking(plans.embed)
    hidden = _blocking(plans.hidden)
    classify = _blocking(plans.classify)
    tag = _blocking(plans.tag)
    answer = _blocking(plans.answer)
    answers = _blocking(plans.answers)
    fill = _blocking(plans.fill)
    fill_masks = _blocking(plans.fill_masks)

    def close(self) -> None:
        """Close the connections; calls under way end in an error."""
        self._transport.close()
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _drive(self, plan: Plan[T]) -> T:
        try:
            calls = next(plan)
            while True:
                try:
                    answers = self._send_all(calls)
                except ClientError as error:  # the plan may know what it means; else it comes back
                    calls = plan.throw(error)
                else:
                    calls = plan.send(answers)
        except StopIteration as done:
            result: T = done.value
            return result

    def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            return [self._send(calls[0])]
        futures = [self._pool.submit(self._send, call) for call in calls]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _send(self, call: Call) -> Any:
        attempts = self._attempts(call)
        while True:
            try:
                return self._transport.send(call, attempts.remaining_s())
            except Unavailable as error:
                time.sleep(attempts.wait_s(error))


class AsyncClient(_Base[AsyncTransport]):
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
