"""gRPC, blocking and on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from . import grpc_wire
from .calls import Call, Infer
from .errors import Cancelled, ClientError
from .transports import Leaving, host_of, kept
from .triton_errors import CLOSED, from_grpc
from .wrong_port import grpc_fault


class _Grpc:
    """What both gRPC transports share: a channel with its stub, and the errors of calls."""

    _channels: Any  # the module that creates channels

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        target, options = host_of(address), grpc_wire.CHANNEL_OPTIONS
        self._channel = (
            self._channels.secure_channel(target, grpc.ssl_channel_credentials(), options)
            if tls
            else self._channels.insecure_channel(target, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._target = "" if tls else target

    def _fault(self, error: Any) -> ClientError:
        """Returns the error of a call. `_target` is empty with TLS, where the port cannot be
        probed."""
        found = from_grpc(error.code().name, error.details() or str(error))
        return grpc_fault(found, self._target) if self._target else found


class GrpcTransport(_Grpc):
    """Blocking gRPC."""

    _channels = grpc

    def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        try:
            message = getattr(self._stub, method)(
                request, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise self._fault(error) from None
        return grpc_wire.decode(call, message)

    def stream(self, call: Infer, timeout_s: float, leaving: Leaving = kept) -> Iterator[Any]:
        """Yields the responses of a call as they arrive; leaving early cancels it."""
        _, request = grpc_wire.encode(call)
        messages = self._stub.ModelStreamInfer(
            iter([request]), timeout=timeout_s, metadata=self._metadata
        )
        try:
            with leaving(messages.cancel):
                for message in messages:
                    if (outputs := grpc_wire.streamed(message)) is not None:
                        yield outputs
        except grpc.RpcError as error:
            raise self._fault(error) from None
        finally:
            messages.cancel()

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcTransport(_Grpc):
    """gRPC on asyncio. Cancelling the task cancels the request on the server.

    grpcio frees the memory of an operation, and a message that it received, only if the task that
    waits for it is not cancelled (https://github.com/grpc/grpc/issues/43360). So the calls are
    cancelled, which ends their operations at once, and not the tasks. What remains: it never frees
    that in which a stream that is left waits for its first response.
    """

    _channels = grpc.aio

    def __init__(self, address: str, tls: bool, headers: dict[str, str], connections: int) -> None:
        super().__init__(address, tls, headers, connections)
        # One request per stream: sent with its end, in one operation.
        self._open = self._channel.unary_stream(*grpc_wire.STREAM)
        self._closed = False

    async def send(self, call: Call, timeout_s: float) -> Any:
        method, request = grpc_wire.encode(call)
        sent = getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        try:
            message = await asyncio.shield(sent)
        except asyncio.CancelledError:
            _cancel(sent)
            self._tell_closed()
            raise
        except grpc.RpcError as error:
            raise await asyncio.to_thread(self._fault, error) from None
        return grpc_wire.decode(call, message)

    async def stream(self, call: Infer, timeout_s: float) -> AsyncGenerator[Any]:
        """Yields the responses of a call as they arrive; leaving early cancels it."""
        _, request = grpc_wire.encode(call)
        messages = self._open(request, timeout=timeout_s, metadata=self._metadata)
        arriving = aiter(messages)
        try:
            while (message := await asyncio.shield(anext(arriving, None))) is not None:
                if (outputs := grpc_wire.streamed(message)) is not None:
                    yield outputs
        except asyncio.CancelledError:
            self._tell_closed()
            raise
        except grpc.RpcError as error:
            raise await asyncio.to_thread(self._fault, error) from None
        finally:
            messages.cancel()

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    def _tell_closed(self) -> None:
        """Raises Cancelled where a CancelledError is the channel's, which was closed, and not the
        caller's."""
        task = asyncio.current_task()
        if self._closed and not (task and task.cancelling()):
            raise Cancelled(CLOSED) from None


def _cancel(call: Any) -> None:
    """Cancels a call for one answer, but not the task in which grpcio waits for the answer, as its
    public `cancel` does."""
    getattr(call, "_cancel", lambda _: call.cancel())("the caller left")
