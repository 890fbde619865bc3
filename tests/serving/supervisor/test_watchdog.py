"""The watchdog's judgement, against a stand-in of the server: what it ends, loads and reports."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.supervisor import watchdog as watchdog_module
from fusewire.serving.supervisor.processes import Stub
from fusewire.serving.supervisor.watchdog import Watchdog

from tests.server.asking import until
from tests.serving.supervisor.stand_ins import (
    StandInProcess,
    StandInTriton,
    config_of,
    finished,
    sleeping_child,
    watched,
)

LATE = EndpointError(0, "no answer", timed_out=True)


class Watching:
    """A watchdog over a server with the model `m`, whose only process is a child of the test; a
    load starts another."""

    def __init__(self, triton: StandInTriton, repository: Path) -> None:
        self.triton = triton
        self.triton.loaded = self._begin
        self.children: list[subprocess.Popen[bytes]] = []
        self.process = StandInProcess()
        self._begin()
        self.said: list[str] = []
        parts = watched(triton, self.process, repositories=[repository])
        self.watchdog = Watchdog(parts, self.said.append)
        self.heal()

    def _begin(self) -> None:
        self.children.append(sleeping_child())
        self.process.living = [Stub(self.children[-1].pid, "m", "1", "m_0_0")]

    def heal(self) -> None:
        """One step, to the end of the loads that it began."""
        finished(self.watchdog.watch_processes)

    def probe(self, times: int = 1) -> None:
        for _ in range(times):
            self.watchdog.watch_answers()
        self.heal()

    @property
    def loads(self) -> int:
        return len(self.triton.loads)

    def ended(self) -> bool:
        return self.children[0].poll() is not None

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.pbtxt").touch()
    return tmp_path


@pytest.fixture
def watching(repository: Path) -> Iterator[Any]:
    """Makes them, of the arguments of StandInTriton."""
    made: list[Watching] = []

    def make(**arguments: Any) -> Watching:
        made.append(Watching(StandInTriton({"m": [1]}, **arguments), repository))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_model_that_makes_no_progress_is_ended_and_loaded_again(watching: Any) -> None:
    hung = watching(error=LATE, answered=itertools.repeat(4))
    hung.probe()
    assert hung.children[0].wait(10) == -9
    assert hung.triton.loads == [("m", (1,))]
    assert hung.said[0] == "m: no answer for 30 s; loading the model again"


def test_a_model_that_answers_others_does_not_hang(watching: Any) -> None:
    busy = watching(error=LATE, answered=itertools.count())
    busy.probe()
    assert (busy.ended(), busy.loads, busy.said) == (False, 0, [])


@pytest.mark.parametrize(("tokens", "ended"), [([7, 7], True), ([7, 8], False)])
def test_a_model_whose_long_texts_go_on_does_not_hang(
    watching: Any, tokens: list[int], ended: bool
) -> None:
    late = watching(config=config_of("generate"), error=LATE, tokens=iter(tokens))
    late.probe()
    assert (late.loads == 1) == ended
    if not ended:
        assert not late.ended()


@pytest.mark.parametrize(("due_in_s", "ended"), [(-1.0, True), (60.0, False)])
def test_a_model_whose_work_is_not_due_yet_does_not_hang(
    watching: Any, due_in_s: float, ended: bool
) -> None:
    """A micro-batch may take longer than the watchdog waits for its probe."""
    late = watching(error=LATE, due=time.time() + due_in_s)
    late.probe()
    assert (late.loads == 1) == ended
    if not ended:
        assert not late.ended()


def test_a_server_without_a_metrics_page_is_not_judged(
    watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise OSError("timed out")

    unknown = watching(error=LATE)
    monkeypatch.setattr(unknown.triton, "metrics", broken)
    unknown.probe()
    assert (unknown.ended(), unknown.loads) == (False, 0)


UNHEALTHY = EndpointError(500, "Stub process 'm_0_0' is not healthy.")


def test_an_unhealthy_answer_loads_the_model_again(watching: Any) -> None:
    broken = watching(error=UNHEALTHY)
    broken.probe()
    assert broken.loads == 1
    assert broken.said[0] == "m: a process of the model died; loading the model again"


def test_an_unhealthy_answer_of_the_processes_before_the_last_load_is_old_news(
    watching: Any,
) -> None:
    broken = watching(error=UNHEALTHY)
    broken.watchdog.watch_answers()
    broken.triton.asked = broken.heal  # while the second probe waits
    broken.probe()
    assert broken.loads == 1


def test_other_errors_are_the_models_own_affair(watching: Any) -> None:
    strange = watching(error=EndpointError(400, "text_input: got …"))
    strange.probe(times=3)
    assert (strange.loads, strange.said) == (0, [])


def test_a_model_that_fails_its_probe_twice_is_loaded_again_once(watching: Any) -> None:
    """As one does whose GPU had a fault: its process lives, and answers nothing any more."""
    error = EndpointError(500, "compute: got Error")
    broken = watching(error=error)
    broken.probe()
    assert broken.loads == 0
    broken.probe()
    assert broken.loads == 1
    words = "its test inference fails (compute: got Error)"
    assert broken.said[0] == f"m: {words}; loading the model again"
    broken.probe(times=3)
    assert broken.loads == 1
    broken.triton.error = None  # it answers
    broken.probe()
    broken.triton.error = error
    broken.probe(times=2)
    assert broken.loads == 2


@pytest.mark.parametrize(
    ("words", "loads"),
    [
        ("queue: got 9 sequences waiting", 0),
        ("timeout: got a request whose time has passed", 0),
        ("timeout: got more work", 0),
        ("server: got a …", 1),
    ],
)
def test_a_model_that_refuses_to_generate_is_loaded_again_unless_it_is_full(
    watching: Any, words: str, loads: int
) -> None:
    refusing = watching(config=config_of("generate"), error=EndpointError(400, words))
    refusing.probe(times=2)
    assert refusing.loads == loads


@pytest.mark.parametrize(("error", "ended"), [(LATE, True), (EndpointError(0, "refused"), False)])
@pytest.mark.parametrize("live", [True, False])
def test_a_server_that_gives_no_answer_in_time_on_any_connection_is_ended(
    monkeypatch: pytest.MonkeyPatch, error: EndpointError, ended: bool, live: bool
) -> None:
    def hangs(timeout_s: float = 0) -> list[dict[str, str]]:
        raise error

    process, triton, said = StandInProcess(), StandInTriton({}), list[str]()
    monkeypatch.setattr(triton, "index", hangs)
    monkeypatch.setattr(triton, "live", lambda: live)
    with sleeping_child() as child:
        process.pid = child.pid
        Watchdog(watched(triton, process), said.append).watch_answers()
        if ended and not live:
            assert child.wait(10) == -9
            assert said == ["the server gave no answer for 30 s; ending it"]
        else:
            assert child.poll() is None
            assert said == []
        child.kill()


def test_a_step_that_fails_is_reported_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog_module, "_PAUSE_S", 0.001)
    monkeypatch.setattr(watchdog_module, "_TICK_S", 0.001)
    tries = itertools.count()
    said: list[str] = []
    process = StandInProcess()

    def lacking() -> bool:
        next(tries)
        raise OSError(errno.EMFILE, "Too many open files")

    watchdog = Watchdog(watched(StandInTriton({}), process), said.append)
    monkeypatch.setattr(process, "running", lacking)
    watchdog.start()
    until(lambda: next(tries) > 5)
    watchdog.stop()
    assert said == [
        "the watchdog met an error (OSError: [Errno 24] Too many open files) and tries again"
    ]


def test_a_report_that_nobody_reads_keeps_nothing_from_being_healed() -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    process = StandInProcess()
    process.alive = False
    watchdog = Watchdog(watched(StandInTriton({}), process), broken)
    watchdog.watch_processes()
    assert watchdog.restarts == 1


@pytest.mark.parametrize(("limit_mib", "ended"), [(256, True), (1024, False)])
def test_a_server_beyond_its_memory_limit_is_ended(limit_mib: int, ended: bool) -> None:
    program = "import sys; b = b'x' * (300 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process, said = StandInProcess(), list[str]()
        process.pid = child.pid
        parts = watched(StandInTriton({}), process, memory_limit_mib=limit_mib)
        Watchdog(parts, said.append).watch_memory()
        if ended:
            assert child.wait(10) == -9
            assert "more than the 256 MiB of --memory-limit-mib; ending it" in said[0]
        else:
            assert child.poll() is None
            assert said == []
        child.kill()


def test_a_process_lost_unseen_is_missed(watching: Any) -> None:
    """Whatever became of it: a ready model has as many processes as instances."""
    model = watching(config=config_of(instances=2))
    with sleeping_child() as other:
        model.process.living += [Stub(other.pid, "m", "1", "m_0_1"), Stub(3, "other", "1", "o")]
        model.probe(times=2)
        assert model.loads == 0
        del model.process.living[1]
        model.probe()
        assert model.loads == 0  # once may be in the middle of a load
        model.probe()
        assert model.said[0] == "m: 1 of 2 processes are left; loading the model again"
        other.kill()


def test_requests_of_a_process_that_died_are_lost(repository: Path) -> None:
    lost: list[str] = []
    process = StandInProcess()
    with sleeping_child() as child:
        process.living = [Stub(child.pid, "m", "1", "m_0_0")]
        triton = StandInTriton({"m": [1]})
        parts = watched(
            triton,
            process,
            lost=lambda model, began_before: lost.append(model),
            repositories=[repository],
        )
        watchdog = Watchdog(parts, [].append)
        watchdog.watch_processes()
        process.living = []
        child.kill()
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split(") ")[1][0] == "Z")
        finished(watchdog.watch_processes)
    assert lost == ["m"]
    assert triton.loads == [("m", (1,))]
