"""What both sides of the comparison with vLLM under random arrivals measure.

Needs numpy only: vLLM's side may run in an environment without fusewire.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.arrivals import ANSWER, PROMPT, Request, requests

SHARES = (0.5, 0.7, 0.9)  # of vLLM's capacity
AHEAD = 1.15  # fusewire is measured at these times the shares too
WAITING = 3072  # requests submitted at once to find a capacity
LAST = 1024  # of those, which may run in steps that are not full
# Of the requests that warm up and those that find the capacity: none is in a prefix cache.
WARM_UP_SEED, SEED = 1, 2


def waiting(vocabulary: int, seed: int) -> list[Request]:
    return requests(1.0, WAITING, vocabulary, seed)


def has_enough(offered: list[Request]) -> bool:
    """Whether all but the last ones are done."""
    return sum(request.done for request in offered) >= len(offered) - LAST


def requests_per_s(offered: list[Request], seconds: float) -> float:
    """Returns the throughput by the tokens that came in this time."""
    tokens = sum(len(request.times) for request in offered)
    return tokens / seconds / mean(request.new for request in offered)


def loads(
    shares: tuple[float, ...], capacity: float, seconds: float, vocabulary: int
) -> Iterator[tuple[float, list[Request]]]:
    """Yields the shares and their requests, the same for both sides and others at each share, so
    that nothing is in a prefix cache."""
    for share in shares:
        seed = round(1000 * share)
        offered = requests(share * capacity, seconds, vocabulary, seed)
        # A server keeps no requests that have ended: a collection must not look at these.
        gc.collect()
        gc.freeze()
        yield share, offered


def write(
    path: Path,
    versions: dict[str, str],
    share: float,
    capacities: dict[str, float],
    seconds: float,
    seen: dict[str, Any],
) -> None:
    """Appends a row. `capacities`: of this side, and vLLM's."""
    rate = share * capacities["vllm"]
    row = {"case": f"{share:.1%}", "share": share, "rate": round(rate, 2), "seconds": seconds}
    row |= {"prompt": PROMPT, "answer": ANSWER, "capacities": capacities}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | seen | {"versions": versions}) + "\n")
