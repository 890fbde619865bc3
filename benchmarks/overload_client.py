"""The clients of the overload benchmark, in a process of their own: they send when a request is
due, and never wait for an earlier answer. Neither protocol's client is ours: the server is what is
measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED, Arrival, Seen
from benchmarks.worker import Handler

_RETRY_S = 0.1  # the longest first wait of clients that try again; it doubles with each
_RECOVERED_WITHIN_S = 180.0
_REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclass(frozen=True)
class Load:
    """What a client process is asked to do, once its texts are known."""

    arrivals: Sequence[Arrival]
    deadline_s: float
    tell_deadline: bool  # as Triton's request parameter `timeout`
    tell_tenant: bool
    most_under_way: int | None  # more are refused by the client itself, as by a gateway that counts
    retries: bool  # clients try again until their deadline


@dataclass(frozen=True)
class Saturation:
    """A closed loop, for the server's capacity."""

    seconds: float
    under_way: int


@dataclass(frozen=True)
class Outcome:
    seen: list[Seen] = field(default_factory=list)
    recovered_s: float = 0.0  # from the last arrival to the first answer within its deadline


class Way(Protocol):
    """Sends one request; returns OK, REFUSED, EXPIRED or FAILED."""

    async def send(
        self, text: int, timeout_s: float, parameters: dict[str, str | int]
    ) -> tuple[str, str]:
        """(outcome, message)."""


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


def refusal(message: str) -> tuple[str, str]:
    """Of UNAVAILABLE: a request that the server took and that became late is no refusal."""
    return (EXPIRED if message.startswith("timeout: ") else REFUSED), message


WAYS = {"grpc": GrpcWay, "http": HttpWay}


def clients(protocol: str, address: str, model: str, texts: list[str]) -> Handler:
    """The setup of a Worker: answers a Load with an Outcome, a Saturation with requests/s."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def connected() -> Way:
        return WAYS[protocol](address, model, texts)

    way = loop.run_until_complete(connected())

    def answer(asked: Load | Saturation) -> Any:
        if isinstance(asked, Saturation):
            return loop.run_until_complete(_capacity(way, asked, len(texts)))
        return loop.run_until_complete(_offered(way, asked))

    return answer


async def _capacity(way: Way, asked: Saturation, texts: int) -> float:
    """Requests/s where so many are always under way."""
    numbers = itertools.cycle(range(texts))
    end = time.perf_counter() + asked.seconds
    done = 0

    async def one_after_another() -> None:
        nonlocal done
        while time.perf_counter() < end:
            outcome, message = await way.send(next(numbers), 60.0, {})
            if outcome == REFUSED:  # a server that keeps a share for tenants of the load before
                await asyncio.sleep(_RETRY_S)
                continue
            if outcome != OK:
                raise RuntimeError(f"capacity: {outcome}: {message}")
            done += time.perf_counter() < end

    await asyncio.gather(*(one_after_another() for _ in range(asked.under_way)))
    return done / asked.seconds


async def _offered(way: Way, load: Load) -> Outcome:
    """Each arrival at its time, then one request after the other until the server answers."""
    under_way = 0
    failures: list[str] = []

    async def one(arrival: Arrival, due: float) -> Seen:
        nonlocal under_way
        lag = time.perf_counter() - due
        if load.most_under_way is not None and under_way >= load.most_under_way:
            return Seen(arrival, REFUSED, time.perf_counter() - due, lag)
        under_way += 1
        try:
            outcome, message = await _within_deadline(way, load, arrival, due + load.deadline_s)
        finally:
            under_way -= 1
        if outcome == FAILED:
            failures.append(message)
        return Seen(arrival, outcome, time.perf_counter() - due, lag)

    began = time.perf_counter()
    tasks = []
    for arrival in load.arrivals:
        due = began + arrival.at
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(arrival, due)))
    end = time.perf_counter()
    recovered = asyncio.create_task(_recovered(way, load, end))
    seen = await asyncio.gather(*tasks)
    if failures:
        print(f"failed: {len(failures)}, the first: {failures[0]}", flush=True)
    return Outcome(list(seen), await recovered)


async def _within_deadline(
    way: Way, load: Load, arrival: Arrival, deadline: float
) -> tuple[str, str]:
    attempt = 0
    while (left := deadline - time.perf_counter()) > 0:
        outcome, message = await way.send(arrival.text, left, _parameters(load, arrival, left))
        if outcome != REFUSED or not load.retries:
            return outcome, message
        wait = random.uniform(0, _RETRY_S * 2**attempt)
        attempt += 1
        if time.perf_counter() + wait >= deadline:
            return outcome, message
        await asyncio.sleep(wait)
    return EXPIRED, "its deadline passed before it was sent"


async def _recovered(way: Way, load: Load, end: float) -> float:
    while time.perf_counter() - end < _RECOVERED_WITHIN_S:
        outcome, _ = await way.send(0, load.deadline_s, {})
        if outcome == OK:
            return time.perf_counter() - end
        await asyncio.sleep(0.02)
    return float("inf")


def _parameters(load: Load, arrival: Arrival, left_s: float) -> dict[str, str | int]:
    told: dict[str, str | int] = {}
    if load.tell_deadline:
        told["timeout"] = max(1, int(left_s * 1e6))
    if load.tell_tenant:
        told["tenant"] = arrival.tenant
    return told


def _grpc_request(model: str, text: str) -> pb.ModelInferRequest:
    content = text.encode()
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)
    return request
