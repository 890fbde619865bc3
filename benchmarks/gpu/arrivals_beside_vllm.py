"""What both sides of the comparison with vLLM under random arrivals measure.

Needs numpy only: vLLM's side may run in an environment without fusewire.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine, records
from benchmarks.arrivals import ANSWER, PROMPT, Request, requests

SHARES = (0.5, 0.7, 0.9)  # of vLLM's capacity
AHEAD = 1.15  # fusewire is measured at these times the shares too
WAITING = 3072  # requests submitted at once to find a capacity
LAST = 1024  # of those, which may run in steps that are not full
# Of the requests that warm up and those that find the capacity: none is in a prefix cache.
WARM_UP_SEED, SEED = 1, 2


def waiting(vocabulary: int, seed: int) -> list[Request]:
    return requests(1.0, WAITING, vocabulary, seed)


def loads(
    shares: tuple[float, ...], capacity: float, seconds: float, vocabulary: int
) -> Iterator[tuple[float, list[Request]]]:
    """Yields the shares and their requests, the same for both sides and others at each share, so
    that nothing is in a prefix cache."""
    for share in shares:
        seed = round(1000 * share)
        offered = requests(share * capacity, seconds, vocabulary, seed)
        machine.settle()  # a server keeps no requests that have ended: none is looked at
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
    records.append(path, [row | seen | {"versions": versions}])
