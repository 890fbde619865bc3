"""The blocking client, which runs plans by waiting for their calls."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast

from . import encoding, extraction, generation, plans, rewriting, speech
from .base import Base
from .calls import Call, Infer, Plan, placing
from .errors import ClientError, NotFound, QueueFull, Unavailable
from .generation import Streaming
from .grpc_transports import GrpcTransport
from .http_transports import HttpTransport
from .overloads import Chat, Generate
from .plans import Arrays, with_names
from .signatures import show
from .transports import Transport
from .turns import ThreadTurns

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    plan: Callable[Concatenate[plans.Settings, P], Plan[T]],
) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: Any = self._drive(plan(self._settings, *args, **kwargs))
        if isinstance(result, Streaming):
            result = self._pieces(result)
        found: T = result
        return found

    show(method, plan)
    return method


class Client(Base[Transport]):
    """Blocking client; threads may share it."""

    _transports: ClassVar = {"grpc": GrpcTransport, "http": HttpTransport}

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:  # created by the first method with several requests
        return ThreadPoolExecutor(self._concurrency, "fusewire-client")

    ready = _blocking(plans.ready)
    models = _blocking(plans.models)
    statistics = _blocking(plans.statistics)
    infer = _blocking(plans.infer)
    embed = _blocking(encoding.embed)
    hidden = _blocking(encoding.hidden)
    classify = _blocking(encoding.classify)
    label = _blocking(encoding.label)
    rerank = _blocking(encoding.rerank)
    tag = _blocking(extraction.tag)
    answer = _blocking(extraction.answer)
    answers = _blocking(extraction.answers)
    fill = _blocking(extraction.fill)
    fill_masks = _blocking(extraction.fill_masks)

    translate = _blocking(rewriting.translate)
    summarise = _blocking(rewriting.summarise)
    transcribe = _blocking(speech.transcribe)

    generate: Generate = cast(Any, _blocking(generation.generate))
    chat: Chat = cast(Any, _blocking(generation.chat))

    def close(self) -> None:
        """Closes the connections; running calls end in an error."""
        self._closed = True
        self._transport.close()
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _drive(self, plan: Plan[T]) -> T:
        self._check_open()
        try:
            calls = next(plan)
            while True:
                try:
                    answers = self._send_all(calls)
                # The plan may handle the error; otherwise `throw` raises it again.
                except ClientError as error:
                    calls = plan.throw(error)
                else:
                    calls = plan.send(answers)
        except StopIteration as done:
            result: T = done.value
            return result

    def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            with placing(calls[0]):
                return [self._send(calls[0])]
        turns = ThreadTurns(self._concurrency)
        futures = [self._pool.submit(self._send_in_turn, call, turns) for call in calls]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            # The first error ends all, whatever its place.
            failed = [
                each
                for each in futures
                if each.done() and not each.cancelled() and each.exception()
            ]
            return [future.result() for future in failed or futures]
        finally:
            turns.close()
            for future in futures:
                future.cancel()

    def _send_in_turn(self, call: Call, turns: ThreadTurns) -> Any:
        """Sends one of several concurrent calls. Its timeout begins with its first turn."""
        attempts = None
        while True:
            turn = turns.begin()
            attempts = attempts or self._attempts(call)
            try:
                left_s = attempts.remaining_s()
                told = self._told(call, left_s)
                with placing(call):
                    if isinstance(told, Infer) and told.decoupled:
                        answer: Any = list(self._transport.stream(told, left_s, turns.leaving))
                    else:
                        answer = self._transport.send(told, left_s)
            except QueueFull as error:
                if not turns.refused(turn, left_s):
                    time.sleep(attempts.wait_s(error))
            except Unavailable as error:
                turns.end(answered=False)
                time.sleep(attempts.wait_s(error))
            except BaseException:
                turns.end(answered=False)
                raise
            else:
                turns.end(answered=True)
                return answer

    def _send(self, call: Call) -> Any:
        if isinstance(call, Infer) and call.decoupled:
            return list(self._responses(call))
        attempts = self._attempts(call)
        while True:
            try:
                left_s = attempts.remaining_s()
                return self._transport.send(self._told(call, left_s), left_s)
            except Unavailable as error:
                time.sleep(attempts.wait_s(error))

    def _pieces(self, streaming: Streaming) -> Iterator[Any]:
        try:
            for outputs in self._responses(streaming.call):
                yield from streaming.pieces(outputs)
        except NotFound as error:
            raise self._drive(with_names(self._settings, error, streaming.call)) from None

    def _responses(self, call: Infer) -> Iterator[Arrays]:
        attempts = self._attempts(call)
        started = False
        while True:
            try:
                left_s = attempts.remaining_s()
                for outputs in self._transport.stream(self._told(call, left_s), left_s):
                    started = True
                    yield outputs
                return
            except Unavailable as error:
                if started:  # pieces that were already returned cannot be revoked
                    raise
                time.sleep(attempts.wait_s(error))
