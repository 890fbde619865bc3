"""Arrivals of requests that do not depend on earlier answers, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TENANTS = 5
GREEDY = 10.0  # ratio of this tenant's requests to each other's
_BURST_S = 4.0  # period of bursts; all arrivals are in its first half
OK, REFUSED, EXPIRED, FAILED = "ok", "refused", "expired", "failed"


@dataclass(frozen=True)
class Arrival:
    at: float  # seconds after the start
    text: int
    tenant: str


@dataclass(frozen=True)
class Seen:
    """The outcome of one request: `seconds` from its due time to its answer, or to its deadline."""

    arrival: Arrival
    outcome: str
    seconds: float
    lag: float = 0.0  # how late the client sent it, because it was busy
    refusals: Sequence[float] = ()  # seconds until each; clients that retry have several
    first: float | None = None  # seconds to the first token, where tokens are streamed


def poisson(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """Returns arrivals of one tenant at a constant rate."""
    return _arrivals(rate, seconds, texts, seed, lambda at: at, [1.0])


def bursts(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """Returns arrivals at the same mean rate, with none in every other two seconds."""

    def moved(at: float) -> float:
        return at - at % _BURST_S / 2

    return _arrivals(rate, seconds, texts, seed, moved, [1.0])


def tenants(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """Returns arrivals of several tenants, the first of which sends GREEDY times as many as each
    other."""
    weights = [GREEDY] + [1.0] * (TENANTS - 1)
    return _arrivals(rate, seconds, texts, seed, lambda at: at, weights)


def _arrivals(
    rate: float,
    seconds: float,
    texts: int,
    seed: int,
    moved: Callable[[float], float],
    weights: Sequence[float],
) -> list[Arrival]:
    rng, found, at = np.random.default_rng(seed), [], 0.0
    shares = np.array(weights) / sum(weights)
    while (at := at + rng.exponential(1 / rate)) < seconds:
        tenant = f"tenant-{rng.choice(len(shares), p=shares)}"
        found.append(Arrival(moved(at), int(rng.integers(texts)), tenant))
    return found
