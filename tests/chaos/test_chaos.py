"""The chaos and soak programs in short: `python -m tests.chaos`, `python -m tests.chaos.soak`."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.clients import ENCODER, GENERATOR, LATE, OK, TYPED, Seen
from tests.chaos.faults import FREEZE, KILL, SERVER, Fault, plan
from tests.chaos.holdings import Holdings
from tests.chaos.run import Struck, _judged
from tests.chaos.soak import slope

PATIENCE_S = 11.0


def judged(*seen: Seen, healed: float | None = 3.0, fault: Fault | None = None) -> Any:
    (row,) = _judged([Struck("it", 1.0, healed, 5.0, fault)], seen, PATIENCE_S)
    return row


def test_faults_are_as_many_as_asked_for_and_spread() -> None:
    faults = plan(kills=20, server_kills=5, freezes=5, seed=0)
    assert [faults.count(Fault(KILL, target)) for target in (ENCODER, GENERATOR, SERVER)] == [
        10,
        10,
        5,
    ]
    assert sum(fault.kind == FREEZE for fault in faults) == 5
    places = [place for place, fault in enumerate(faults) if fault.target == SERVER]
    assert min(b - a for a, b in itertools.pairwise(places)) >= 4


def test_an_error_in_time_is_as_promised_after_a_fault_and_not_after_a_reload() -> None:
    seen = Seen("grpc encode", 1.5, 0.1, TYPED, "UNAVAILABLE"), Seen("http encode", 1.5, 0.1, OK)
    row = judged(*seen, fault=Fault(KILL, ENCODER))
    assert (row["failures"], row["ok"], row["typed"]) == ([], 1, 1)
    assert len(judged(*seen)["failures"]) == 1


@pytest.mark.parametrize(
    "seen",
    [
        Seen("grpc encode", 1.5, PATIENCE_S, LATE),
        Seen("grpc encode", 1.5, PATIENCE_S + 0.1, OK),
        Seen("openai encode", 1.5, 0.1, "broken"),
    ],
)
def test_what_is_late_or_has_no_words_is_a_failure(seen: Seen) -> None:
    assert judged(seen, fault=Fault(KILL, ENCODER))["failures"]


def test_what_heals_late_or_never_is_a_failure() -> None:
    for healed in (6.5, None):
        row = judged(healed=healed, fault=Fault(KILL, SERVER))
        assert row["failures"] == ["not healed within 5.0 s"]


def test_more_of_anything_is_a_leak() -> None:
    before = Holdings(4, 0, 2, 3, 20, 10)
    assert before.more_than(before) == {}
    after = Holdings(4, 1, 2, 3, 21, 9)
    assert after.more_than(before) == {"zombies": "0 -> 1", "supervisor_files": "20 -> 21"}


def test_a_slope_is_found_below_steps_and_peaks() -> None:
    leaking = [(count, 10 + count / 1000) for count in range(0, 1000, 10)]
    assert slope(leaking) == pytest.approx(1 / 1000)
    stepping = [(count, 10.0 if count < 500 else 90.0) for count in range(0, 1000, 10)]
    stepping[7] = (70, 400.0)
    assert slope(stepping) == 0


def ran(tmp_path: Path, module: str, *arguments: str) -> list[dict[str, Any]]:
    out = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--out", str(out)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.sweep
@pytest.mark.alone
@pytest.mark.server
def test_killed_and_frozen_under_load_it_heals_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    faults = "--kills=2", "--freezes=1", "--server-kills=1", "--reloads=1"
    rows = ran(tmp_path, "tests.chaos", *faults)
    names = [row["name"] for row in rows]
    assert names[:2] == [f"reload {ENCODER}", f"reload {GENERATOR}"]
    assert {f"kill {SERVER}", f"kill {ENCODER}", f"kill {GENERATOR}", "end"} <= set(names)
    assert all(row["requests"] for row in rows[:-1])


@pytest.mark.sweep
@pytest.mark.alone
@pytest.mark.server
def test_many_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    rows = ran(tmp_path, "tests.chaos.soak", "--encodes=40000", "--generations=30000")
    assert [row["requests"] for row in rows] == [40000, 30000]
