"""What is loaded and started again, and when, against a stand-in of the server."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

import pytest
from fusewire.serving import backoff
from fusewire.serving.supervisor.healing import Healer
from fusewire.serving.supervisor.pins import Pin
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.starter import ServerFailed

from tests.serving.supervisor.stand_ins import StandInProcess, StandInTriton, finished, watched


class Clock:
    """That of the back-off alone."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(backoff, "time", Clock())
    return backoff.time  # type: ignore[attr-defined]


class Server(StandInTriton):
    """One whose process has died each time that it is started again."""

    def __init__(self, served: dict[str, list[int]]) -> None:
        super().__init__(served)
        self.process = StandInProcess()
        self.started: list[list[str]] = []
        self.fail_to_start: Callable[[], None] = lambda: None
        self.ended = threading.Event()

    def start(self, models: Sequence[str]) -> None:
        self.started.append(list(models))
        self.fail_to_start()


def healer(server: Server) -> tuple[Healer, list[str]]:
    said: list[str] = []
    parts = watched(server, server.process, start=server.start)
    healer = Healer(parts, said.append, server.ended)
    healer.remember()
    return healer, said


def healed(healer: Healer) -> None:
    """Lets it begin what is due, and waits for the end of that."""
    finished(healer.heal)


def test_the_version_that_served_is_loaded_again_and_no_newer_one() -> None:
    server = Server({"m": [1]})
    server.states["m", 2] = "UNAVAILABLE truncated"
    heal, said = healer(server)
    heal.suspect("m", "its process died")
    healed(heal)
    assert server.loads == [("m", (1,))]
    assert heal.suspects() == {}
    assert said[0] == "m: its process died; loading the model again"
    assert said[1].startswith("m: serving again after")


def test_a_newer_version_that_serves_takes_over() -> None:
    server = Server({"m": [1]})
    heal, _ = healer(server)
    server.states = {("m", 1): "UNLOADING", ("m", 2): "READY"}
    heal.suspect("m", "its process died")
    healed(heal)
    assert server.loads == [("m", (2,))]


@pytest.mark.parametrize("state", ["UNLOADING", "UNAVAILABLE unloaded"])
def test_a_model_that_was_unloaded_is_not_loaded_again(state: str) -> None:
    server = Server({"m": [1]})
    heal, said = healer(server)
    server.states = {("m", 1): state, ("m", 2): "UNAVAILABLE truncated"}
    heal.suspect("m", "its process died")
    healed(heal)
    assert server.loads == []
    assert heal.suspects() == {}
    assert said == ["m: its process died; not loaded again, as it was unloaded"]


def test_a_model_that_cannot_be_loaded_is_tried_again_later(clock: Clock) -> None:
    server = Server({"m": [1]})
    heal, said = healer(server)
    server.refused.add(("m", (1,)))
    heal.suspect("m", "its process died")
    healed(heal)
    assert "m: could not be loaded again (truncated); trying again in" in said[-1]
    healed(heal)
    assert len(server.loads) == 1  # not yet
    server.refused.clear()
    clock.now += 1
    healed(heal)
    assert heal.reloads == 1
    assert heal.suspects() == {}


def test_of_several_versions_the_newest_that_loads_serves() -> None:
    server = Server({"m": [1, 2]})
    heal, said = healer(server)
    server.refused = {("m", (1, 2)), ("m", (2,))}
    heal.suspect("m", "not loaded")
    healed(heal)
    assert server.loads == [("m", (1, 2)), ("m", (2,)), ("m", (1,))]
    assert "m: only version 1 could be loaded (truncated)" in said


def test_a_server_that_keeps_dying_is_started_ever_more_seldom_and_never_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "_FIRST_S", 0.01)
    monkeypatch.setattr(backoff, "_LAST_S", 0.04)
    server = Server({"m": [1]})
    heal, said = healer(server)
    for _ in range(12):
        heal.restart()
    assert heal.restarts == 12
    assert said[0] == (
        "the server died (exit code -9); starting it again (last line of its log: last words)"
    )
    assert "starting it again in 0.0 s" in said[-2]


def test_a_server_that_does_not_start_is_started_without_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them may be what kept it from starting."""
    monkeypatch.setattr(backoff, "_FIRST_S", 0.01)
    monkeypatch.setattr(Pin, "in_repositories", lambda *_: True)
    server = Server({"m": [1], "n": [3]})
    heal, said = healer(server)
    server.states.clear()

    def once() -> None:
        if len(server.started) == 1:
            raise ServerFailed("no port")

    server.fail_to_start = once
    heal.restart()
    assert server.started == [["m", "n"], []]
    assert server.process.cleared == 1
    assert said[1].startswith("the server did not start (no port); starting it again in 0.0")
    assert heal.suspects() == {"m": "not loaded yet", "n": "not loaded yet"}
    assert said[-1].endswith(", without m, n")
    healed(heal)
    assert sorted(server.loads) == [("m", (1,)), ("n", (3,))]


def test_models_that_do_not_load_keep_no_other_from_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pin, "in_repositories", lambda *_: True)
    server = Server({"m": [1], "n": [1]})
    heal, said = healer(server)
    server.states["m", 1] = "UNAVAILABLE truncated"
    heal.restart()
    assert heal.restarts == 1
    assert heal.suspects() == {"m": "not loaded (truncated)"}
    assert said[-1].endswith(", without m")


def test_a_stopped_healer_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({})
    heal, _ = healer(server)
    heal.restart()
    server.ended.set()
    heal.restart()
    assert len(server.started) == 1


def test_a_lack_of_file_descriptors_delays_a_reload(clock: Clock) -> None:
    server = Server({"m": [1]})
    heal, said = healer(server)

    def lacking() -> list[Stub]:
        raise OSError(errno.EMFILE, "Too many open files")

    stubs = server.process.stubs
    server.process.stubs = lacking  # type: ignore[method-assign]
    heal.suspect("m", "its process died")
    healed(heal)
    assert "Too many open files" in said[-1]
    server.process.stubs = stubs  # type: ignore[method-assign]
    clock.now += 1
    healed(heal)
    assert heal.reloads == 1
