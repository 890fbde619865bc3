"""Which loads of a running server wait for a process that died before its first message."""

from __future__ import annotations

import pytest
from fusewire.serving.supervisor import unheard
from fusewire.serving.supervisor.processes import State, Stub
from fusewire.serving.supervisor.unheard import UnheardLoads

RUNS: State = "running"
DIED: State = "died"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> UnheardLoads:
    monkeypatch.setattr(unheard, "_PATIENCE_S", 0.0)
    return UnheardLoads()


def stub(pid: int, model: str) -> Stub:
    return Stub(pid, model, "1", f"{model}_0")


def test_a_load_without_a_process_after_one_died_is_told_once(loads: UnheardLoads) -> None:
    loads.see({1: RUNS}, [stub(1, "one")])
    loads.see({1: DIED}, [])
    assert loads.due({"one", "two"}) == ["one"]
    assert loads.due({"one", "two"}) == []
    assert loads.due({"two"}) == []


def test_a_process_that_nobody_saw_running_may_be_of_any_load(loads: UnheardLoads) -> None:
    loads.see({1: RUNS, 2: DIED}, [stub(1, "one")])
    assert loads.due({"one", "two"}) == ["two"]


def test_loads_are_left_alone_while_nothing_dies(loads: UnheardLoads) -> None:
    """As those of backends that have no processes."""
    loads.see({1: RUNS, 2: RUNS}, [stub(1, "one")])
    loads.see({1: RUNS, 2: "ended"}, [stub(1, "one")])
    assert loads.due({"one", "two"}) == []


def test_a_death_of_long_ago_concerns_no_load(
    loads: UnheardLoads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads.see({2: DIED}, [])
    monkeypatch.setattr(unheard, "_RECENT_S", 0.0)
    assert loads.due({"two"}) == []
