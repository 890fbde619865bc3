"""Cores of a server and those of its clients, on machines made up here and on this one."""

from __future__ import annotations

import os

import pytest

from benchmarks import cores
from benchmarks.cores import Parts


def test_a_list_of_cores_may_have_ranges() -> None:
    assert cores.parsed("0,2-4,9") == (0, 2, 3, 4, 9)
    with pytest.raises(ValueError, match="invalid literal"):
        cores.parsed("two")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (Parts((0, 9), (1,)), r"got \[9\], wanted some of \[0, 1, 2\]"),
        (Parts((0, 1), (1, 2)), r"got \[1\] for the server and its clients"),
        (Parts((0, 1), ()), "got those of one side"),
    ],
)
def test_cores_that_cannot_be_had_or_are_not_apart_are_refused(parts: Parts, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        cores.checked(parts, [0, 1, 2])


def test_benchmarks_at_the_same_time_share_no_core() -> None:
    usable = list(range(16))
    parts = [cores.part(number, 3, 2, usable) for number in range(3)]
    assert parts[1] == Parts((5, 6), (7, 8, 9))
    taken = [cpu for part in parts for cpu in part.all]
    assert len(taken) == len(set(taken)) == 15
    for number, of in ((3, 3), (0, 8)):
        with pytest.raises(SystemExit, match="wanted more than 2 cores each"):
            cores.part(number, of, 2, usable)


def test_threads_of_one_core_are_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "siblings", lambda cpu: (cpu % 4, cpu % 4 + 4))
    assert cores.usable() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert cores.shared(Parts((0, 4), (1, 5))) == []
    assert cores.shared(Parts((0, 1), (2, 4))) == [4]


def test_what_is_started_meanwhile_stays_on_the_cores() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    with cores.on(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
    with cores.on(()):
        assert os.sched_getaffinity(0) == before
    with pytest.raises(SystemExit, match="may run on"):
        cores.check_runs_on({max(before) + 1}, [os.getpid()])
    cores.check_runs_on(before, [os.getpid()])
