"""Requests that arrive whether or not earlier ones were answered, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TENANTS = 5
GREEDY = 10.0  # times what each other tenant sends
_BURST_S = 4.0  # of each, the first half has all arrivals
OK, REFUSED, EXPIRED, FAILED = "ok", "refused", "expired", "failed"


@dataclass(frozen=True)
class Arrival:
    at: float  # seconds after the beginning
    text: int
    tenant: str


@dataclass(frozen=True)
class Seen:
    """What became of one: `seconds` from when it was due to its answer, or to its deadline."""

    arrival: Arrival
    outcome: str
    seconds: float
    lag: float = 0.0  # that the client sent it late: work of its own
    refusals: Sequence[float] = ()  # seconds until each, of a client that tries again several
    first: float | None = None  # seconds to the first token, where tokens come


def poisson(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """Of one tenant, at a constant rate."""
    return _arrivals(rate, seconds, texts, seed, lambda at: at, [1.0])


def bursts(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """At the same mean rate, and none in every other two seconds."""

    def moved(at: float) -> float:
        return at - at % _BURST_S / 2

    return _arrivals(rate, seconds, texts, seed, moved, [1.0])


def tenants(rate: float, seconds: float, texts: int, seed: int = 0) -> list[Arrival]:
    """Of several tenants, the first of which sends GREEDY times what each other does."""
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
