"""Device time: events around many calls, contenders in turns, medians over the rounds.

A single call would measure the gap between launches; many calls in a row keep the device busy, and
turns let drift of the clocks affect every contender equally.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

ROUNDS = 7
TURN_MS = 12.0
MOST_CALLS = 400

Run = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """A function to time: `run` launches work on `stream` and returns; one call has `launches`
    launches.

    `prepare(round)` is called before each turn and is not timed. Without a stream the host's clock
    is used.
    """

    name: str
    run: Run
    stream: torch.cuda.Stream | None
    launches: int = 1
    prepare: Callable[[int], Any] = lambda turn: None


def medians_ms(
    contenders: list[Contender], rounds: int = ROUNDS, turn_ms: float = TURN_MS
) -> dict[str, float]:
    """Returns the median time of one launch of each contender."""
    calls = {}
    for contender in contenders:
        contender.prepare(0)
        elapsed_ms(contender, 2)  # warm-up
        calls[contender.name] = calls_within(turn_ms, elapsed_ms(contender, 2))
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds):
        # Each round starts with another one, so that none always follows the same one.
        first = turn % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            contender.prepare(turn)
            contender.run()
            found[contender.name].append(elapsed_ms(contender, calls[contender.name]))
    return {c.name: median(found[c.name]) / c.launches for c in contenders}


def elapsed_ms(contender: Contender, calls: int) -> float:
    """Returns the time of one call, the mean of `calls` in a row."""
    if contender.stream is None:
        begin = time.perf_counter()
        for _ in range(calls):
            contender.run()
        return (time.perf_counter() - begin) * 1e3 / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(contender.stream)
    for _ in range(calls):
        contender.run()
    last.record(contender.stream)
    last.synchronize()
    return first.elapsed_time(last) / calls


def wall_ms(call: Callable[[int], Any], wait: Run, rounds: int = 5, turn_ms: float = 20.0) -> float:
    """Returns the time per call that a caller sees: the host's clock around many `call(i)` in a row
    and one wait at the end."""

    def turn(calls: int) -> float:
        begin = time.perf_counter()
        for i in range(calls):
            call(i)
        wait()
        return (time.perf_counter() - begin) * 1e3 / calls

    turn(2)
    calls = calls_within(turn_ms, turn(2))
    return median(turn(calls) for _ in range(rounds))


def calls_within(turn_ms: float, one_ms: float) -> int:
    return int(min(max(3.0, turn_ms / one_ms), MOST_CALLS))


def recorded(work: Run) -> Run:
    """Captures torch work in a CUDA graph and returns its replay, on the current stream."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # loads and selects kernels, and allocates workspaces
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return partial(_replay, graph, work)


def _replay(graph: torch.cuda.CUDAGraph, work: Run) -> None:
    """Replays the graph. `work` keeps the tensors alive whose addresses the graph has."""
    graph.replay()


def torch_launches(name: str, calls: Sequence[Run]) -> Contender:
    """Returns all `calls` of torch as one graph."""

    def work() -> None:
        for call in calls:
            call()

    return Contender(name, recorded(work), torch.cuda.current_stream(), len(calls))
