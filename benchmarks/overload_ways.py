"""How a client of the overload benchmark sends a request, by protocol. It does not use our client,
because the server is measured."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import aiohttp
import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED

_REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class Answer(NamedTuple):
    """`outcome`: OK, REFUSED, EXPIRED or FAILED. `first`: when the first token arrived, by
    perf_counter."""

    outcome: str
    message: str = ""
    first: float | None = None


class Prompt(NamedTuple):
    """A request to a model that generates."""

    ids: list[int]
    new: int  # tokens to generate


class Way(Protocol):
    """Sends requests, which are identified by number."""

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
        """Sends the request and returns when the whole answer has arrived."""

    async def close(self) -> None: ...


class GrpcWay:
    def __init__(self, address: str, model: str, texts: Sequence[str]) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._requests = [_grpc_request(model, text) for text in texts]

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
        request = _with(self._requests[text], parameters)
        try:
            await self._stub.ModelInfer(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return _failure(error)
        return Answer(OK)

    async def close(self) -> None:
        await self._channel.close()


class StreamWay(GrpcWay):
    """Sends each request on its own stream, for streamed tokens."""

    def __init__(self, address: str, model: str, prompts: Sequence[Prompt]) -> None:
        super().__init__(address, model, [])
        self._requests = [_generate_request(model, prompt) for prompt in prompts]

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
        request = _with(self._requests[text], parameters)

        async def alone() -> AsyncIterator[pb.ModelInferRequest]:
            yield request

        first = None
        try:
            async for response in self._stub.ModelStreamInfer(alone(), timeout=timeout_s):
                if response.error_message:
                    return _without_code(response.error_message)
                first = first or time.perf_counter()
        except grpc.RpcError as error:
            return _failure(error)
        return Answer(OK, first=first)


class HttpWay:
    def __init__(self, address: str, model: str, texts: Sequence[str]) -> None:
        self._url = f"http://{address}/v2/models/{model}/infer"
        self._texts = texts
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def send(self, text: int, timeout_s: float, parameters: dict[str, str | int]) -> Answer:
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
            return Answer(EXPIRED, "client timeout")
        except aiohttp.ClientError as error:
            return Answer(FAILED, repr(error))
        if response.status == 200:
            return Answer(OK)
        message = content.decode(errors="replace")
        if response.status == 503:
            return refusal(json.loads(message)["error"])
        return Answer(FAILED, message)

    async def close(self) -> None:
        await self._session.close()


def refusal(message: str) -> Answer:
    """Returns the answer for UNAVAILABLE: a request that the server accepted and that expired is
    not a refusal."""
    return Answer(EXPIRED if message.startswith("timeout: ") else REFUSED, message)


def _without_code(message: str) -> Answer:
    """Returns the answer for an error in a stream, which has a message but no code."""
    known = message.startswith(("timeout: ", "queue: "))
    return refusal(message) if known else Answer(FAILED, message)


def _failure(error: grpc.RpcError) -> Answer:
    code, details = error.code(), str(error.details())
    if code in _REFUSALS:
        return refusal(details)
    return Answer(EXPIRED if code == grpc.StatusCode.DEADLINE_EXCEEDED else FAILED, details)


WAYS: dict[str, Any] = {"grpc": GrpcWay, "http": HttpWay, "stream": StreamWay}


def _with(request: pb.ModelInferRequest, parameters: Mapping[str, str | int]) -> Any:
    made = pb.ModelInferRequest()
    made.CopyFrom(request)
    for name, value in parameters.items():
        if isinstance(value, int):
            made.parameters[name].int64_param = value
        else:
            made.parameters[name].string_param = value
    return made


def _generate_request(model: str, prompt: Prompt) -> pb.ModelInferRequest:
    asked = {"max_new_tokens": prompt.new, "ignore_eos": True, "temperature": 0}
    request = pb.ModelInferRequest(model_name=model)
    ids = b"".join(token.to_bytes(8, "little") for token in prompt.ids)
    for name, datatype, length, content in (
        ("input_ids", "INT64", len(prompt.ids), ids),
        ("stream", "BOOL", 1, b"\x01"),
        ("sampling_parameters", "BYTES", 1, _bytes(json.dumps(asked))),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[length])
        request.raw_input_contents.append(content)
    return request


def _grpc_request(model: str, text: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(_bytes(text))
    return request


def _bytes(text: str) -> bytes:
    content = text.encode()
    return len(content).to_bytes(4, "little") + content
