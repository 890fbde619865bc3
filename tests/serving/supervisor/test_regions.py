"""Which shared memory of ended stubs is removed, and when."""

from __future__ import annotations

import pytest
from fusewire.serving.supervisor import regions
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.regions import Regions


def test_one_that_no_stub_has_is_removed_when_it_had_time_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(regions.time, "monotonic", lambda: now)
    first, second = (Stub(pid, "m", "1", f"m_0_{pid}", f"region_{pid}") for pid in (0, 1))
    both = [first.region, second.region]
    seen = Regions()
    assert seen.due(both, [first]) == []
    now += regions._PATIENCE_S / 2
    assert seen.due(both, [first, second]) == []  # the second was still starting
    assert seen.due(both, [second]) == []  # the first died
    now += regions._PATIENCE_S
    assert seen.due(both, [second]) == [first.region]
    assert seen.due([second.region], [second]) == []
