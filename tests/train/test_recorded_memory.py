"""When recordings that share memory are recorded again."""

from __future__ import annotations

import torch
from fusewire.train.recorded_memory import RecordedMemory

CPU = torch.device("cpu")


def test_there_is_room_for_what_is_not_larger_in_anything() -> None:
    memory = RecordedMemory(CPU)
    assert not memory.has_room_for({"tokens": 1})
    memory.renew({"tokens": 8, "labels": 4})
    assert memory.has_room_for({"tokens": 8, "labels": 1})
    assert not memory.has_room_for({"tokens": 9, "labels": 1})
    assert not memory.has_room_for({"tokens": 1, "places": 1})


def test_two_that_are_each_larger_in_something_do_not_take_turns() -> None:
    memory = RecordedMemory(CPU)
    one, other = {"tokens": 8, "labels": 4}, {"tokens": 4, "labels": 8}
    memory.renew(one)
    assert not memory.has_room_for(other)
    memory.renew(other)
    assert memory.has_room_for(one)


def test_where_layers_save_elsewhere_nothing_that_was_recorded_counts() -> None:
    memory = RecordedMemory(CPU)
    memory.renew({"tokens": 8})
    memory.blocks.take(1 << 12).free()
    assert not memory.moved
    memory.blocks.take(1 << 13).free()
    assert memory.moved
    memory.renew({"tokens": 4})
    assert not memory.moved
    assert not memory.has_room_for({"tokens": 8})
