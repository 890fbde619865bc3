"""Which cells of the overload benchmark fit into a time limit: the most important ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, product
from typing import NamedTuple

from benchmarks.overload_systems import LOADS, SYSTEMS, possible

START_S = 15.0  # starting and stopping a server with its model
PAUSE_S = 1.5  # after each load
RAMP_S = 2.0  # until prompts alone are counted
_CLIENTS_S = 1.0  # until the client processes run
# Added to a deadline, for a server that computes nothing expired: gRPC cancels such requests.
_RECOVERY_S = 0.5


class Cell(NamedTuple):
    system: str
    load: str
    protocol: str
    share: float  # of the capacity


def server_of(cell: Cell) -> tuple[str, bool]:
    """Returns what the cells of one server share: the system, and whether its model generates."""
    return cell.system, LOADS[cell.load].generates


def client_of(cell: Cell) -> tuple[str, str, str]:
    """Returns what the cells of one client share."""
    return cell.system, cell.load, cell.protocol


class Pace(NamedTuple):
    """The durations of a cell: `seconds` of arrivals in each of its turns, `capacity_s` of the
    closed loop before and after each."""

    seconds: float
    capacity_s: float
    turns: int = 1


def cells(
    systems: Sequence[str], loads: Sequence[str], protocols: Sequence[str], shares: Sequence[float]
) -> list[Cell]:
    """Returns all cells, the most important first: each list is given in the order of
    importance."""
    ranked = product(*(enumerate(each) for each in (systems, loads, protocols, shares)))
    ordered = sorted(ranked, key=lambda chosen: sum(rank for rank, _ in chosen))
    found = [Cell(*(value for _, value in chosen)) for chosen in ordered]
    return [cell for cell in found if possible(cell.system, cell.load, cell.protocol)]


def in_groups(chosen: Iterable[Cell]) -> list[Cell]:
    """Returns the cells in the order in which they run: one server per system, one client per load,
    shares ascending."""
    systems, loads = list(SYSTEMS), list(LOADS)
    return sorted(
        chosen,
        key=lambda c: (systems.index(c.system), loads.index(c.load), c.protocol, c.share),
    )


def cell_s(cell: Cell, pace: Pace) -> float:
    """Returns the predicted seconds of one cell: arrivals, the queue that they leave, and a
    pause."""
    # Triton does not notice that an HTTP client has disconnected: it computes every request.
    endless = cell.protocol == "http" and cell.system == "fifo"
    recovery = max(0.0, cell.share - 1) * pace.seconds if endless else 0.0
    within = LOADS[cell.load].deadline_s
    recovery += within + _RECOVERY_S
    return pace.turns * (pace.seconds + pace.capacity_s + within + recovery + PAUSE_S)


def predicted_s(chosen: Iterable[Cell], pace: Pace) -> float:
    """Returns the predicted seconds of all cells, including starts of servers and closed loops."""
    seconds = 0.0
    for _, of_server in groupby(in_groups(chosen), server_of):
        seconds += START_S
        for (_, load, _), of_client in groupby(of_server, client_of):
            ramps = 3 * LOADS[load].deadline_s  # twice before counting begins, and to warm up
            seconds += _CLIENTS_S + ramps + pace.capacity_s
            if LOADS[load].generates:
                seconds += _CLIENTS_S + RAMP_S + pace.capacity_s
            seconds += sum(cell_s(cell, pace) for cell in of_client)
    return seconds


def that_fit(ordered: Sequence[Cell], pace: Pace, limit_s: float) -> list[Cell]:
    """Returns the first cells whose predicted time together is below the limit."""
    chosen: list[Cell] = []
    for cell in ordered:
        if predicted_s([*chosen, cell], pace) <= limit_s:
            chosen.append(cell)
    return chosen
