"""Which ended children of the server are reaped, and when."""

from __future__ import annotations

import pytest
from fusewire.serving.supervisor import zombies
from fusewire.serving.supervisor.zombies import Zombies


def test_those_that_remain_are_reaped_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(zombies.time, "monotonic", lambda: now)
    seen = Zombies()
    assert seen.due([7, 8]) == []
    now += zombies._PATIENCE_S / 2
    assert seen.due([7, 9]) == []  # the server reaped 8
    now += zombies._PATIENCE_S / 2
    assert seen.due([7, 9]) == [7]
    assert seen.due([7]) == [7]  # a thread of it was left
    assert seen.due([]) == []
    assert seen.due([7]) == []  # another process of this id
