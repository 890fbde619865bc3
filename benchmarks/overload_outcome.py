"""What the overload benchmark counts: answers within the deadline, and how many were possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.overload_arrivals import EXPIRED, FAILED, OK, REFUSED, Arrival, Seen


class Turn(NamedTuple):
    """The outcomes of arrivals while the server could answer `capacity` requests/s. Where a
    machine's speed changes, several turns, each between its own closed loops, are more accurate
    than a long one."""

    seen: Sequence[Seen]
    capacity: float


def statistics(
    turns: Sequence[Turn], seconds: float, deadline: float, tokens: Sequence[float]
) -> dict[str, Any]:
    """Returns statistics of all arrivals of turns of `seconds` each. `tokens`: of each text, as a
    server that prefers short texts answers more of them.

    Goodput counts the answers within these seconds: later ones were computed in up to `deadline`
    seconds beyond them. In tokens it includes the part of an answer that had arrived by then.
    """
    seen = [each for turn in turns for each in turn.seen]
    good = [each for each in seen if each.outcome == OK and each.seconds <= deadline]
    during = [each for each in good if each.arrival.at + each.seconds <= seconds]
    capacity, total_s = fmean(turn.capacity for turn in turns), len(turns) * seconds
    costs = _costs(tokens, capacity)
    work = sum(costs[each.arrival.text] * _part_by(each, seconds) for each in good) / total_s
    could = [_possible(turn, seconds, deadline, tokens) * turn.capacity for turn in turns]
    goodput = len(during) / total_s
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
        "possible_of_capacity": round(fmean(could) / capacity, 4),
        "goodput_of_offered": round(len(good) / max(len(seen), 1), 4),
        **_percentiles("accepted_ms", [each.seconds for each in seen if each.outcome == OK]),
        **_percentiles("first_ms", [each.first for each in seen if each.first is not None]),
        **_percentiles("refused_ms", [taken for each in seen for taken in each.refusals]),
        **_percentiles("client_lag_ms", [each.lag for each in seen]),
        "jain": round(jain(_shares(seen, good, total_s, costs)), 4),
    }


def _costs(tokens: Sequence[float], capacity: float) -> list[float]:
    """Returns the seconds that each text takes in the closed loop."""
    return [each / fmean(tokens) / capacity for each in tokens]


def _possible(turn: Turn, seconds: float, deadline: float, tokens: Sequence[float]) -> float:
    arrivals = sorted((each.arrival for each in turn.seen), key=lambda arrival: arrival.at)
    return possible(arrivals, seconds, deadline, _costs(tokens, turn.capacity))


def _part_by(each: Seen, seconds: float) -> float:
    """Returns the fraction of a good answer that had arrived by `seconds`. Tokens arrive evenly."""
    left = seconds - each.arrival.at
    if left >= each.seconds or each.first is None:
        return float(left >= each.seconds)
    return max(0.0, (left - each.first) / (each.seconds - each.first))


def possible(
    arrivals: Sequence[Arrival], seconds: float, deadline: float, costs: Sequence[float]
) -> float:
    """Returns the share of the time in which a server works that answers requests in order of
    arrival, skipping those that it cannot answer in time. For equal requests this is the maximum
    (Moore, 1968). `costs`: seconds of each text."""
    free = worked = 0.0
    for arrival in arrivals:
        cost = costs[arrival.text]
        end = max(free, arrival.at) + cost
        if end <= arrival.at + deadline:
            free = end
            worked += cost if end <= seconds else 0.0
    return worked / seconds


def fair_rates(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Returns the max-min fair rate of each tenant: none gets more than its demand, and the others
    share what it leaves (Bertsekas and Gallager, Data Networks, 6.5.2)."""
    fair: dict[str, float] = {}
    left = capacity
    for place, name in enumerate(sorted(demands, key=lambda name: demands[name])):
        fair[name] = min(demands[name], left / (len(demands) - place))
        left -= fair[name]
    return fair


def jain(shares: Sequence[float]) -> float:
    """Returns Jain's index: 1 where all shares are equal, 1/n where one has everything (Jain, Chiu
    and Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


def _shares(
    seen: Sequence[Seen], good: Sequence[Seen], seconds: float, costs: Sequence[float]
) -> list[float]:
    """Returns what each tenant got of its fair rate, in work. Fair rates are of the total that all
    tenants got, because the capacity is known less accurately and total throughput is a separate
    question."""
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
