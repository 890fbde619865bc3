"""Audio beyond what an engine holds is refused, with the time after which there is room."""

from __future__ import annotations

import pytest
from fusewire.engine.held_audio import HeldAudio
from fusewire.errors import Overloaded


def refusal(held: HeldAudio, seconds: float) -> Overloaded:
    with pytest.raises(Overloaded) as refused:
        held.take(seconds)
    return refused.value


def test_there_is_room_when_enough_of_it_has_ended() -> None:
    ends = [10.0, 20.0, 40.0, 80.0]
    held = HeldAudio(100, lambda: ends)
    for _ in ends:
        held.take(25)
    for seconds, after in ((1, 10.0), (24, 10.0), (26, 20.0), (60, 40.0), (100, 80.0)):
        assert refusal(held, seconds).retry_after_s == after
    assert str(refusal(held, 25)).endswith("; try again in 20.0 s")
    assert held.seconds == 100
    held.leave(25)
    held.take(25)


def test_where_none_runs_yet_there_may_be_room_soon() -> None:
    held = HeldAudio(100, list)
    held.take(90)
    assert refusal(held, 20).retry_after_s == 1.0
    held.take(10)
