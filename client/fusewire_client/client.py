"""The blocking client: it drives the plans by waiting."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from . import generation, plans
from .base import Base
from .calls import Call, Infer, Plan
from .errors import ClientError, Unavailable
from .transports import GrpcTransport, HttpTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(plan)  # its docstring and parameters; help() shows `settings` as self
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive(plan(self._settings, *args, **kwargs))

    return method


class Client(Base[Transport]):
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

    @overload
    def generate(
        self, prompt: str | None = ..., *, stream: Literal[False] = ..., **given: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: str | None = ..., *, stream: Literal[True], **given: Any
    ) -> Iterator[str]: ...
    def generate(
        self,
        prompt: str | None = None,
        *,
        stream: bool = False,
        ids: Sequence[int] | None = None,
        model: str | None = None,
        version: str = "",
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> str | Iterator[str]:
        """What the model writes after the prompt, or after token ids; streamed: its pieces, as they
        come. Leaving the iterator cancels the rest. `parameters` are those of generation, checked
        by the server: max_new_tokens, temperature, top_p, stop, seed, …"""
        call = self._drive(
            generation.request(
                self._settings, prompt, ids, stream, model, version, timeout_s, parameters
            )
        )
        pieces = self._pieces(call)
        return pieces if stream else "".join(pieces)

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

    def _pieces(self, call: Infer) -> Iterator[str]:
        attempts = self._attempts(call)
        begun = False
        while True:
            try:
                for outputs in self._transport.stream(call, attempts.remaining_s()):
                    begun = True
                    yield generation.piece(outputs)
                return
            except Unavailable as error:
                if begun:  # what was given cannot be taken back
                    raise
                time.sleep(attempts.wait_s(error))
