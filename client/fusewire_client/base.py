"""What both clients share: their options, and how a call is retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from . import plans
from .calls import Ask, Call, Infer, Parameter
from .errors import ClientError, InvalidArgument
from .retry import Attempts, Retry
from .wire import check_parameters

C = TypeVar("C")  # the type of the transport
Told = TypeVar("Told", Infer, Call)
_AT_ONCE = Retry(retries=0)
_TIMEOUT_S = 60.0
_NO_LIMIT_S = 86400.0  # longer timeouts count as none: no call waits for a day


class Base(Generic[C]):
    """Options of both clients."""

    _transports: ClassVar[dict[str, Callable[[str, bool, dict[str, str], int], Any]]]
    _closed = False

    def __init__(
        self,
        address: str,
        *,
        protocol: Literal["grpc", "http"] = "grpc",
        model: str | None = None,
        timeout_s: float | None = None,
        retries: int = 3,
        backoff_s: float = 0.1,
        max_batch: int = 32,
        concurrency: int = 32,
        tls: bool = False,
        headers: dict[str, str] | None = None,
        tenant: str | None = None,
        priority: int | None = None,
    ) -> None:
        """The first call opens the connection.

        Args:
            address: host:port with the protocol's port (Triton's: 8001 gRPC, 8000 HTTP).
            protocol: `grpc` or `http`.
            model: Default model of calls. Default: the server's only one for the
                task.
            timeout_s: Timeout of one call with its retries, in seconds. It is sent to the server,
                which rejects requests that it cannot compute in time and drops those that are
                late. Default: 60, which is not sent: the server's own objective (`slo_ms`) holds.
            retries: Maximum number of retries after `Unavailable`. After `Overloaded` a call is
                retried as often as its timeout allows. 0: never.
            backoff_s: Upper bound of the first wait before a retry, in seconds; it doubles with
                each retry.
            max_batch: Maximum number of texts in a request, at most the model's max_batch_size.
            concurrency: Maximum number of concurrent requests of one method call. It is lowered
                while the server refuses some with `QueueFull`: those are sent again after others
                of the call were answered, whatever `retries` is.
            tls: Encrypt, with the system's certificates.
            headers: Headers of each request (authorisation, keys of restricted APIs).
            tenant: The tenant of requests; under load, tenants have equal shares of a model. For
                one call, give it the parameter `tenant=`.
            priority: Priority of requests among those of their tenant; lower numbers run first.
                For one call, give it the parameter `request_priority=`.

        Raises:
            InvalidArgument: An option is out of range.
        """
        if protocol not in self._transports:
            raise InvalidArgument(f"protocol: got {protocol!r}, wanted 'grpc' or 'http'; choose")
        self._named_timeout_s = timeout_s
        self._timeout_s = _TIMEOUT_S if timeout_s is None else timeout_s
        for name, value in (
            ("timeout_s", self._timeout_s),
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
        self._retry = Retry(retries, backoff_s)
        self._concurrency = concurrency
        named = {"tenant": tenant, "request_priority": priority}
        self._parameters = {name: value for name, value in named.items() if value is not None}
        check_parameters(self._parameters)
        self._transport: C = self._transports[protocol](
            address, tls, dict(headers or {}), concurrency
        )

    def _told(self, call: Told, timeout_s: float) -> Told:
        """Returns the call with the parameters that the server needs: tenant and priority, and the
        remaining time. It is sent in Triton's parameter `timeout`, because gRPC's deadline does not
        reach a model."""
        if not isinstance(call, Infer):
            return call
        told: dict[str, Parameter] = {**self._parameters, **call.parameters}
        named_s = self._named_timeout_s if call.timeout_s is None else call.timeout_s
        if named_s is not None and named_s < _NO_LIMIT_S:
            told["timeout"] = max(1, int(timeout_s * 1e6))
        return replace(call, parameters=told)

    def _attempts(self, call: Call) -> Attempts:
        if isinstance(call, Infer):
            check_parameters(call.parameters)
        if call.timeout_s is not None and not (
            isinstance(call.timeout_s, int | float) and call.timeout_s > 0
        ):
            raise InvalidArgument(
                f"timeout_s: got {call.timeout_s!r}, wanted a number of more than 0; correct it"
            )
        # A server that is not ready is an answer: do not retry until it is.
        at_once = isinstance(call, Ask) and call.about == "ready"
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return Attempts(_AT_ONCE if at_once else self._retry, timeout_s)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientError("client: got a call after `close`, wanted one before; make another")
