"""Clients in a process of their own: open loop, over every entrance, each request with a deadline.

    python -m tests.chaos.clients LOAD OUT

LOAD is a Load as JSON. A request is sent when it is due, whether or not earlier ones were
answered. OUT gets a JSON line for each that ended. Closing stdin ends the arrivals; those under way
end first.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import aiohttp
import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

# How a request may end: with its answer; with an error that says what it is; without a connection;
# with a connection that broke; with nothing in time.
OK, TYPED, REFUSED, BROKEN, LATE = "ok", "typed", "refused", "broken", "late"
ENCODER, GENERATOR = "encoder", "generator"
_TEXT = "how does a server behave whose processes die"
# A channel that lost its server tries again soon, as the next server is there in seconds.
_CHANNEL = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_NO_CONNECTION = ("failed to connect", "Connection refused")
_LOST_CONNECTION = ("Socket closed", "recvmsg", "GOAWAY", "Connection reset", "Broken pipe")

Ended = tuple[str, str]  # how, in which words


@dataclass(frozen=True)
class Load:
    """`rates`: way -> requests per second, arriving as a Poisson process."""

    addresses: dict[str, str]
    rates: dict[str, float]
    deadline_s: float
    slack_s: float  # that an answer may need beyond the deadline
    tokens: int  # of a generated text
    seed: int = 0


@dataclass(frozen=True)
class Seen:
    """One request: when it was sent (time.monotonic(), which processes share), and its end."""

    way: str
    began: float
    seconds: float
    outcome: str
    words: str = ""

    @property
    def ended(self) -> float:
        return self.began + self.seconds


class Ways:
    """How requests are sent: each method returns how one ended."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._channel = grpc.aio.insecure_channel(load.addresses["grpc"], options=_CHANNEL)
        self._triton = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        await self._session.close()
        await self._channel.close()

    async def grpc_encode(self) -> Ended:
        request = pb.ModelInferRequest(model_name=ENCODER)
        _add_text(request, [1, 1])
        self._add_timeout(request)
        return await self._over_grpc(self._triton.ModelInfer(request, timeout=self._patience_s))

    async def grpc_generate(self) -> Ended:
        request = pb.ModelInferRequest(model_name=GENERATOR)
        _add_text(request, [1])
        self._add_timeout(request)
        request.inputs.add(name="stream", datatype="BOOL", shape=[1])
        request.raw_input_contents.append(b"\x01")
        request.parameters["max_new_tokens"].int64_param = self._load.tokens
        request.parameters["ignore_eos"].bool_param = True
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        return await self._over_grpc(self._stream(request))

    async def http_encode(self) -> Ended:
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [_TEXT]}
        body = {"inputs": [tensor], "parameters": {"timeout": int(self._load.deadline_s * 1e6)}}
        return await self._over_http("http", f"/v2/models/{ENCODER}/infer", body)

    async def http_generate(self) -> Ended:
        parameters = {"max_new_tokens": self._load.tokens, "ignore_eos": True}
        parameters["timeout"] = int(self._load.deadline_s * 1e6)
        body = {"text_input": _TEXT, "parameters": parameters}
        return await self._over_http("http", f"/v2/models/{GENERATOR}/generate", body)

    async def openai_encode(self) -> Ended:
        body = {"model": ENCODER, "input": _TEXT, "timeout_seconds": self._load.deadline_s}
        return await self._over_http("openai", "/v1/embeddings", body)

    async def openai_generate(self) -> Ended:
        body = {"model": GENERATOR, "prompt": _TEXT, "max_tokens": self._load.tokens}
        body |= {"ignore_eos": True, "timeout_seconds": self._load.deadline_s}
        return await self._over_http("openai", "/v1/completions", body)

    @property
    def _patience_s(self) -> float:
        return self._load.deadline_s + self._load.slack_s

    def _add_timeout(self, request: pb.ModelInferRequest) -> None:
        request.parameters["timeout"].int64_param = int(self._load.deadline_s * 1e6)

    async def _stream(self, request: pb.ModelInferRequest) -> Ended | None:
        async def requests() -> Any:
            yield request

        call = self._triton.ModelStreamInfer(requests(), timeout=self._patience_s)
        async for event in call:
            if event.error_message:
                return TYPED, event.error_message
            if event.infer_response.parameters["triton_final_response"].bool_param:
                return None
        return BROKEN, "the stream ended without its final response"

    async def _over_grpc(self, call: Awaitable[Any]) -> Ended:
        try:
            answer = await call
        except grpc.RpcError as error:
            words = str(error.details())
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return LATE, words
            if any(each in words for each in _NO_CONNECTION):
                return REFUSED, words
            lost = any(each in words for each in _LOST_CONNECTION)
            return BROKEN if lost else TYPED, f"{error.code().name} {words}"
        return answer if isinstance(answer, tuple) else (OK, "")

    async def _over_http(self, entrance: str, path: str, body: dict[str, Any]) -> Ended:
        url = f"http://{self._load.addresses[entrance]}{path}"
        limit = aiohttp.ClientTimeout(total=self._patience_s)
        try:
            async with self._session.post(url, json=body, timeout=limit) as response:
                text = await response.text()
        except TimeoutError:
            return LATE, "no answer in time"
        except aiohttp.ClientConnectorError as error:
            return REFUSED, str(error)
        except aiohttp.ClientError as error:
            return BROKEN, repr(error)
        if response.status == 200:
            return OK, ""
        try:
            typed = bool(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            typed = False
        return TYPED if typed else BROKEN, f"{response.status} {text[:200]}"


WAYS: dict[str, Callable[[Ways], Awaitable[Ended]]] = {
    "grpc encode": Ways.grpc_encode,
    "grpc generate": Ways.grpc_generate,
    "http encode": Ways.http_encode,
    "http generate": Ways.http_generate,
    "openai encode": Ways.openai_encode,
    "openai generate": Ways.openai_generate,
}


class Clients:
    """The process, from outside."""

    def __init__(self, load: Load, out: Path) -> None:
        self._out = out
        command = [sys.executable, "-m", "tests.chaos.clients", json.dumps(asdict(load)), str(out)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )

    def seen(self) -> list[Seen]:
        """What has ended so far."""
        return list(_read(self._out)) if self._out.exists() else []

    def stop(self) -> list[Seen]:
        """Ends the arrivals; returns all that was seen."""
        self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"the clients ended with exit code {self._process.returncode}")
        return self.seen()


def _read(path: Path) -> Iterator[Seen]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Seen(**json.loads(line))


def _add_text(request: pb.ModelInferRequest, shape: list[int]) -> None:
    content = _TEXT.encode()
    request.inputs.add(name="text_input", datatype="BYTES", shape=shape)
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)


async def _offer(load: Load, out: TextIO, ended: threading.Event) -> None:
    ways = Ways(load)
    running: set[asyncio.Task[None]] = set()

    async def one(way: str) -> None:
        began = time.monotonic()
        outcome, words = await WAYS[way](ways)
        seen = Seen(way, began, time.monotonic() - began, outcome, words[:200])
        out.write(json.dumps(asdict(seen)) + "\n")
        out.flush()

    async def arrivals(way: str, rate: float, chance: random.Random) -> None:
        due = time.monotonic()
        while not ended.is_set():
            due += chance.expovariate(rate)
            # In short sleeps, so that a low rate does not hold up the end.
            while (wait := due - time.monotonic()) > 0 and not ended.is_set():
                await asyncio.sleep(min(wait, 0.2))
            task = asyncio.create_task(one(way))
            running.add(task)
            task.add_done_callback(running.discard)

    chance = random.Random(load.seed)
    await asyncio.gather(
        *(arrivals(way, rate, random.Random(chance.random())) for way, rate in load.rates.items())
    )
    await asyncio.gather(*running)
    await ways.close()


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        asyncio.run(_offer(load, out, ended))


if __name__ == "__main__":
    main()
