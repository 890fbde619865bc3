"""How a client of the overload benchmark sends a request, by protocol. Neither protocol's client is
ours: the server is what is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

import aiohttp
import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED

_REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Way(Protocol):
    """Sends one request; returns OK, REFUSED, EXPIRED or FAILED."""

    async def send(
        self, text: int, timeout_s: float, parameters: dict[str, str | int]
    ) -> tuple[str, str]:
        """(outcome, message)."""

    async def close(self) -> None: ...


class GrpcWay:
    def __init__(self, address: str, model: str, texts: Sequence[str]) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._requests = [_grpc_request(model, text) for text in texts]

    async def send(
        self, text: int, timeout_s: float, parameters: dict[str, str | int]
    ) -> tuple[str, str]:
        request = pb.ModelInferRequest()
        request.CopyFrom(self._requests[text])
        for name, value in parameters.items():
            if isinstance(value, int):
                request.parameters[name].int64_param = value
            else:
                request.parameters[name].string_param = value
        try:
            await self._stub.ModelInfer(request, timeout=timeout_s)
        except grpc.RpcError as error:
            code = error.code()
            if code in _REFUSALS:
                return refusal(str(error.details()))
            expired = code == grpc.StatusCode.DEADLINE_EXCEEDED
            return EXPIRED if expired else FAILED, str(error.details())
        return OK, ""

    async def close(self) -> None:
        await self._channel.close()


class HttpWay:
    def __init__(self, address: str, model: str, texts: Sequence[str]) -> None:
        self._url = f"http://{address}/v2/models/{model}/infer"
        self._texts = texts
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def send(
        self, text: int, timeout_s: float, parameters: dict[str, str | int]
    ) -> tuple[str, str]:
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
        body = {"inputs": [tensor | {"data": [self._texts[text]]}], "parameters": parameters}
        body["outputs"] = [{"name": "embedding", "parameters": {"binary_data": True}}]
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                self._url, data=json.dumps(body).encode(), timeout=limit
            ) as response:
                content = await response.read()
        except TimeoutError:
            return EXPIRED, "client timeout"
        except aiohttp.ClientError as error:
            return FAILED, repr(error)
        if response.status == 200:
            return OK, ""
        message = content.decode(errors="replace")
        if response.status == 503:
            return refusal(json.loads(message)["error"])
        return FAILED, message

    async def close(self) -> None:
        await self._session.close()


def refusal(message: str) -> tuple[str, str]:
    """Of UNAVAILABLE: a request that the server took and that became late is no refusal."""
    return (EXPIRED if message.startswith("timeout: ") else REFUSED), message


WAYS = {"grpc": GrpcWay, "http": HttpWay}


def _grpc_request(model: str, text: str) -> pb.ModelInferRequest:
    content = text.encode()
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    return request
