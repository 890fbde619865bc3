"""Streams of a served model, read by several processes: through fusewire_client over gRPC, and
through the OpenAI endpoint over HTTP."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from statistics import median
from typing import Any

import fusewire_client

from benchmarks import machine

NAME = "model"  # of the served model
# Processes, on half of the cores; a single one cannot keep up with 64 streams.
READERS = max(4, len(os.sched_getaffinity(0)) // 2)
SOON_S = 1.0  # from now to the common start

Times = list[tuple[float, float]]  # the times of the first and the last response of each stream
Stream = Callable[[list[int]], Iterator[Any]]  # prompt -> its responses with tokens, as they come


def sampling(tokens: int) -> dict[str, Any]:
    return {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}


@contextmanager
def client(at: dict[str, str], tokens: int) -> Iterator[Stream]:
    with fusewire_client.Client(at["grpc"], model=NAME) as connected:
        connected.ready()  # connects
        yield lambda prompt: connected.generate(ids=prompt, stream=True, **sampling(tokens))


@contextmanager
def endpoint(at: dict[str, str], tokens: int) -> Iterator[Stream]:
    given = {"model": NAME, "stream": True, "stream_options": {"include_usage": True}}
    given |= sampling(tokens)
    headers = {"Content-Type": "application/json"}

    def stream(prompt: list[int]) -> Iterator[Any]:
        with closing(http.client.HTTPConnection(at["openai"], timeout=120)) as connection:
            body = json.dumps({**given, "prompt": prompt})
            connection.request("POST", "/v1/completions", body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(
                    f"/v1/completions: status {response.status}: {response.read()!r}"
                )
            end: dict[str, Any] = {}
            for line in response:
                if b'"choices":[{' in line:
                    yield line
                elif line.startswith(b"data: {"):
                    end = json.loads(line.removeprefix(b"data: "))
        if (usage := end.get("usage")) is None or usage["completion_tokens"] != tokens:
            raise RuntimeError(f"/v1/completions: the stream of {tokens} tokens ended with {end}")

    yield stream


Way = Callable[[dict[str, str], int], AbstractContextManager[Stream]]
WAYS: dict[str, Way] = {"server": client, "endpoint": endpoint}


@contextmanager
def readers() -> Iterator[list[ProcessPoolExecutor]]:
    """Yields processes that have started: one that is still starting would begin its streams
    late."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        found = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(READERS)]
        for started in [reader.submit(machine.settle) for reader in found]:
            started.result()
        yield found


def by_server(
    readers: list[ProcessPoolExecutor],
    way: str,
    at: dict[str, str],
    prompts: list[list[int]],
    tokens: int,
) -> tuple[float, Times]:
    """Reads the streams of these prompts, which begin together, one of WAYS. Returns when they
    began and their times."""
    began = time.perf_counter() + SOON_S
    shares = [prompts[index :: len(readers)] for index in range(len(readers))]
    read = [
        reader.submit(_read, way, at, share, tokens, began)
        for reader, share in zip(readers, shares, strict=True)
        if share
    ]
    return began, [times for future in read for times in future.result()]


def _read(
    way: str, at: dict[str, str], prompts: list[list[int]], tokens: int, begin: float
) -> Times:
    machine.settle()
    with WAYS[way](at, tokens) as stream, ThreadPoolExecutor(len(prompts)) as pool:

        def read(prompt: list[int]) -> tuple[float, float]:
            time.sleep(max(0.0, begin - time.perf_counter()))
            times = [time.perf_counter() for _ in stream(prompt)]
            return times[0], times[-1]

        return list(pool.map(read, prompts))


def row_of(began: float, times: Times, tokens: int) -> dict[str, float]:
    between = median((last - first) / (tokens - 1) for first, last in times)
    taken = max(last for _, last in times) - began
    return {
        "between_ms": round(between * 1e3, 4),
        "tokens_per_s": round(len(times) * tokens / taken, 1),
        "first_ms": round(median(first - began for first, _ in times) * 1e3, 3),
    }
