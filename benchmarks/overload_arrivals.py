"""Requests that arrive whether or not earlier ones were answered, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def statistics(
    seen: Sequence[Seen],
    seconds: float,
    capacity: float,
    deadline: float,
    tokens: Sequence[float],
) -> dict[str, Any]:
    """Of all arrivals of so many seconds. `capacity`: requests/s that the server can answer.
    `tokens`: of each text, as a server that prefers short ones answers more of them.
    Goodput is of the answers in these seconds: those that come after them were computed with time
    beyond them, up to a deadline of it. In tokens it has what came of them until then."""
    good = [each for each in seen if each.outcome == OK and each.seconds <= deadline]
    during = [each.arrival for each in good if each.arrival.at + each.seconds <= seconds]
    goodput = len(during) / seconds
    mean = sum(tokens) / len(tokens)
    costs = [each / mean / capacity for each in tokens]  # seconds of the closed loop
    work = sum(costs[each.arrival.text] * _part_by(each, seconds) for each in good) / seconds
    arrivals = sorted((each.arrival for each in seen), key=lambda arrival: arrival.at)
    counts = {
        f"{outcome}_requests": sum(each.outcome == outcome for each in seen)
        for outcome in (OK, REFUSED, EXPIRED, FAILED)
    }
    return {
        "requests": len(seen),
        **counts,
        "goodput_per_s": round(goodput, 2),
        "goodput_of_capacity": round(goodput / capacity, 4),
        "goodput_tokens_of_capacity": round(work, 4),
        "possible_of_capacity": round(possible(arrivals, seconds, deadline, costs), 4),
        "goodput_of_offered": round(len(good) / max(len(seen), 1), 4),
        **_percentiles("accepted_ms", [each.seconds for each in seen if each.outcome == OK]),
        **_percentiles("first_ms", [each.first for each in seen if each.first is not None]),
        **_percentiles("refused_ms", [taken for each in seen for taken in each.refusals]),
        **_percentiles("client_lag_ms", [each.lag for each in seen]),
        "jain": round(jain(_shares(seen, good, seconds, costs)), 4),
    }


def _part_by(each: Seen, seconds: float) -> float:
    """Of a good answer: how much had come by then. Tokens come evenly."""
    left = seconds - each.arrival.at
    if left >= each.seconds or each.first is None:
        return float(left >= each.seconds)
    return max(0.0, (left - each.first) / (each.seconds - each.first))


def possible(
    arrivals: Sequence[Arrival], seconds: float, deadline: float, costs: Sequence[float]
) -> float:
    """The share of the time in which a server works that answers one after the other, in order,
    what it can answer in time. Of equal requests none answers more (Moore, 1968). `costs`: seconds
    of each text."""
    free = worked = 0.0
    for arrival in arrivals:
        cost = costs[arrival.text]
        end = max(free, arrival.at) + cost
        if end <= arrival.at + deadline:
            free = end
            worked += cost if end <= seconds else 0.0
    return worked / seconds


def fair_rates(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """The max-min fair rate of each: nobody gets more than it asks for, and what one leaves is the
    others' (Bertsekas and Gallager, Data Networks, 6.5.2)."""
    fair: dict[str, float] = {}
    left = capacity
    for place, name in enumerate(sorted(demands, key=lambda name: demands[name])):
        fair[name] = min(demands[name], left / (len(demands) - place))
        left -= fair[name]
    return fair


def jain(shares: Sequence[float]) -> float:
    """1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def _shares(
    seen: Sequence[Seen], good: Sequence[Seen], seconds: float, costs: Sequence[float]
) -> list[float]:
    """What each tenant got of its fair rate, in work; of what all got together, as capacities are
    known less well, and how much a server does is another question."""
    asked: dict[str, float] = {}
    got: dict[str, float] = {}
    for found, all_of in ((asked, seen), (got, good)):
        for each in all_of:
            tenant, cost = each.arrival.tenant, costs[each.arrival.text]
            found[tenant] = found.get(tenant, 0.0) + cost / seconds
    fair = fair_rates(asked, sum(got.values()))
    return [got.get(name, 0.0) / rate if rate else 0.0 for name, rate in fair.items()]


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"{name}_p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}
