"""Which cells of a run fit into its time, and the options that say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import overload_plan as plan
from benchmarks.overload_options import options
from benchmarks.overload_plan import Cell, Pace

PACE = Pace(seconds=16.0, capacity_s=8.0)


def test_each_list_is_in_the_order_of_importance() -> None:
    found = plan.cells(["fusewire", "fifo"], ["48 words"], ["grpc"], [3.0, 0.7])
    assert found[0] == Cell("fusewire", "48 words", "grpc", 3.0)
    assert found[-1] == Cell("fifo", "48 words", "grpc", 0.7)
    assert len(set(found)) == 4


def test_a_server_runs_all_its_cells_at_once_and_a_client_all_its_shares() -> None:
    found = plan.cells(["fifo", "fusewire"], ["lengths", "48 words"], ["grpc"], [3.0, 0.7])
    assert plan.in_groups(found) == [
        Cell(system, load, "grpc", share)
        for system in ("fusewire", "fifo")
        for load in ("48 words", "lengths")
        for share in (0.7, 3.0)
    ]


def test_what_fits_are_the_most_important_ones() -> None:
    ordered = plan.cells(["fusewire", "fifo"], ["48 words"], ["grpc"], [3.0, 0.7])
    whole = plan.predicted_s(ordered, PACE)
    assert plan.that_fit(ordered, PACE, whole) == ordered
    less = plan.that_fit(ordered, PACE, whole - 1)
    assert less == ordered[:-1]
    assert plan.predicted_s(less, PACE) <= whole - 1
    assert plan.that_fit(ordered, PACE, 10.0) == []


def test_a_server_that_computes_the_dead_takes_longer_to_recover() -> None:
    over_http = [plan.cell_s(Cell(s, "48 words", "http", 3.0), PACE) for s in ("fifo", "fusewire")]
    assert over_http[0] - over_http[1] == pytest.approx(2 * 16.0)
    assert plan.cell_s(Cell("fifo", "48 words", "grpc", 3.0), PACE) == over_http[1]


def test_the_matrix_of_one_load_takes_the_time_that_its_arrivals_and_servers_do() -> None:
    systems = ["fusewire", "fifo", "triton", "count"]
    ordered = plan.cells(systems, ["48 words"], ["grpc"], [3.0, 0.7, 1.0, 2.0])
    least = 16 * (16.0 + 8.0) + 4 * 8.0
    assert least < plan.predicted_s(ordered, PACE) < 2 * least


def test_options_choose_cells_and_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.cores.usable", lambda: list(range(16)))
    given = options(
        "about", ["--copy", "2/4", "--minutes", "2", "--out", str(tmp_path), "--seconds", "16"]
    )
    assert given.parts == ((8, 9), (10, 11))
    assert given.first_port == 18020
    assert given.threads == 2
    assert 0 < len(given.cells) < given.asked
    plain = options("about", [])
    assert (plain.parts.all, plain.first_port) == ((), 0)
    assert len(plain.cells) == plain.asked == 20
    with pytest.raises(SystemExit, match="wanted enough for one cell"):
        options("about", ["--minutes", "0.1"])
    with pytest.raises(SystemExit):
        options("about", ["--copy", "0/2", "--server-cores", "0"])
