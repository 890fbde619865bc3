"""When it is worth loading a model again for the shared memory that its processes hold."""

from __future__ import annotations

import pytest
from fusewire.serving.supervisor import shared_memory
from fusewire.serving.supervisor.memory import Resident
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.shared_memory import SharedMemory

MIB = 1 << 20
STUB = Stub(7, "m", "1", "m_0_0")


@pytest.mark.parametrize(
    ("held_mib", "own_mib", "surplus_mib"),
    [(31, 100, 0), (40, 100, 40), (40, 1000, 0), (200, 1000, 200)],
)
def test_a_surplus_counts_from_a_share_of_the_processs_own_memory(
    monkeypatch: pytest.MonkeyPatch, held_mib: int, own_mib: int, surplus_mib: int
) -> None:
    held = 5
    own = own_mib * MIB
    monkeypatch.setattr(shared_memory.memory, "resident", lambda pid: Resident(own, 0, held * MIB))
    memory = SharedMemory()
    assert memory.surplus_bytes([STUB]) == 0
    held += held_mib
    assert memory.surplus_bytes([STUB]) == surplus_mib * MIB


def test_it_is_given_back_once_it_has_not_grown_for_a_while_and_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, now = 5, 1000.0
    own = 100 * MIB
    monkeypatch.setattr(shared_memory.memory, "resident", lambda pid: Resident(0, own, held * MIB))
    monkeypatch.setattr(shared_memory.time, "monotonic", lambda: now)
    memory = SharedMemory()

    def due(calls: int) -> list[int]:
        return [memory.due_bytes("m", [STUB]) // MIB for _ in range(calls)]

    assert due(20) == [0] * 20
    held = 55
    assert due(5) == [0] * 5
    held = 65  # it grows again: the wait begins anew
    assert due(13) == [0] * 12 + [60]
    assert due(20) == [0] * 20  # as if it were taken again at once
    now += shared_memory._REST_S + 1
    assert due(1) == [60]


def test_a_process_is_forgotten_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process id may become another's."""
    held = 100
    monkeypatch.setattr(shared_memory.memory, "resident", lambda pid: Resident(0, 0, held * MIB))
    memory, other = SharedMemory(), Stub(7, "m", "1", "m_0_1")
    memory.due_bytes("m", [STUB])
    memory.due_bytes("other", [])
    held = 200
    assert memory.surplus_bytes([STUB]) == 100 * MIB
    memory.due_bytes("m", [other])
    assert memory.surplus_bytes([STUB]) == 0
