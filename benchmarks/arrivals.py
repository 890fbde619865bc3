"""Requests that arrive at random, and the latencies of their clients.

Needs numpy only: other systems may run in an environment without fusewire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np

# Median, standard deviation of the logarithm, maximum.
PROMPT, ANSWER = (64, 0.8, 512), (48, 0.9, 256)
WARM = 0.2  # share of the time that is not measured


@dataclass
class Request:
    at: float  # seconds after the start
    prompt: list[int]
    new: int
    times: list[float] = field(default_factory=list)  # arrival times of its tokens
    done: bool = False


def requests(rate: float, seconds: float, vocabulary: int, seed: int = 0) -> list[Request]:
    """Returns the requests that arrive within `seconds`."""
    rng, found, at = np.random.default_rng(seed), [], 0.0
    while (at := at + rng.exponential(1 / rate)) < seconds:
        length, new = (_length(rng, *which) for which in (PROMPT, ANSWER))
        found.append(Request(at, rng.integers(0, vocabulary, length).tolist(), new))
    return found


def _length(rng: np.random.Generator, middle: float, spread: float, most: int) -> int:
    return int(min(most, max(1, rng.lognormal(np.log(middle), spread))))


def all_but(last: int, offered: list[Request]) -> bool:
    """Whether all but so many are done: the last ones may run in steps that are not full."""
    return sum(request.done for request in offered) >= len(offered) - last


def requests_per_s(offered: list[Request], seconds: float) -> float:
    """Returns the throughput by the tokens that came in this time."""
    tokens = sum(len(request.times) for request in offered)
    return tokens / seconds / mean(request.new for request in offered)


def statistics(offered: list[Request], began: float, begin: float, end: float) -> dict[str, Any]:
    """Returns statistics of the tokens between `begin` and `end`, and of the requests that arrived
    in between."""
    counted = [request for request in offered if began + request.at >= begin]
    first = [min([*request.times[:1], end]) - began - request.at for request in counted]
    gaps = [
        later - earlier
        for request in offered
        for earlier, later in pairwise(request.times)
        if begin <= earlier and later <= end
    ]
    tokens = sum(begin <= at < end for request in offered for at in request.times)
    return {
        "requests": len(counted),
        "without_token": sum(not request.times for request in counted),
        "answered": sum(request.done and request.times[-1] <= end for request in counted),
        "tokens_per_s": round(tokens / (end - begin), 1),
        **_percentiles("first_token_ms", first),
        **_percentiles("inter_token_ms", gaps),
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"{name}_p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}
