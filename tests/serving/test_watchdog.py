"""The watchdog's judgement, against a stand-in of the server: what it does when."""

from __future__ import annotations

import itertools
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fusewire.serving.config import ServerSettings
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.probe import Probe, ProbeTensor
from fusewire.serving.processes import Stub
from fusewire.serving.server import ServerFailed
from fusewire.serving.watchdog import Watchdog

PROBE = Probe("embed", (ProbeTensor("text_input", ("awake?",)),))


class Process:
    def __init__(self) -> None:
        self.last_lines = ["last words"]
        self.stub_died = False
        self.loaded_at: dict[str, float] = {}
        self.pid = 1

    def running(self) -> bool:
        return False

    def exit_code(self) -> int:
        return -9

    def stubs(self) -> list[Stub]:
        return []

    def clear(self) -> None:
        pass


class Endpoint:
    """Answers `infer` and `generate` with an error, the statistics and metrics with a count."""

    def __init__(
        self, error: EndpointError, answered: Iterator[int], tokens: Iterator[int] | None = None
    ) -> None:
        self.error, self.answered = error, answered
        self.tokens = tokens or itertools.repeat(0)

    def call(self, path: str, body: Any = None, timeout_s: float = 0) -> Any:
        if path.endswith(("/infer", "/generate")):
            raise self.error
        answered = {"success": {"count": str(next(self.answered))}}
        return {"model_stats": [{"inference_stats": answered}]}

    def metrics(self) -> str:
        return f'fusewire_tokens_total{{model="m",task="generate"}} {next(self.tokens)}\n'


class Server:
    def __init__(self, launch: Callable[[], None] = lambda: None) -> None:
        self.settings = ServerSettings(restarts=2)
        self.process = Process()
        self.launch = launch


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def watchdog(server: Server) -> tuple[Watchdog, list[str]]:
    said: list[str] = []
    return Watchdog(server, said.append), said  # type: ignore[arg-type]


@pytest.mark.parametrize(("answered", "ended"), [([4, 4], True), ([4, 5], False)])
def test_a_model_that_makes_no_progress_is_ended(
    child: subprocess.Popen[bytes], answered: list[int], ended: bool
) -> None:
    """No answer in time means hung only if nothing else was answered either."""
    server = Server()
    server.endpoint = Endpoint(EndpointError(0, "timed out"), iter(answered))  # type: ignore[attr-defined]
    watch, _ = watchdog(server)
    watch._alive = {child.pid: Stub(child.pid, "m", "1", "m_0_0")}
    watch._ask("m", PROBE)
    if ended:
        assert child.wait(10) == -9
        assert watch._suspects == {"m": "no answer for 30 s"}
    else:
        assert child.poll() is None
        assert watch._suspects == {}


@pytest.mark.parametrize(("tokens", "ended"), [([7, 7], True), ([7, 8], False)])
def test_a_model_whose_long_texts_go_on_does_not_hang(
    child: subprocess.Popen[bytes], tokens: list[int], ended: bool
) -> None:
    server = Server()
    late = EndpointError(0, "timed out")
    server.endpoint = Endpoint(late, itertools.repeat(4), iter(tokens))  # type: ignore[attr-defined]
    watch, _ = watchdog(server)
    watch._alive = {child.pid: Stub(child.pid, "m", "1", "m_0_0")}
    watch._ask("m", Probe("generate", (ProbeTensor("input_ids", (0,)),)))
    assert ("m" in watch._suspects) == ended
    assert (child.poll() is None) or ended


@pytest.mark.parametrize("reloaded_meanwhile", [False, True])
def test_an_unhealthy_answer_makes_a_suspect_unless_it_is_old_news(
    reloaded_meanwhile: bool,
) -> None:
    server = Server()
    watch, _ = watchdog(server)
    endpoint = Endpoint(EndpointError(500, "Stub process 'm_0_0' is not healthy."), iter([1]))
    call = endpoint.call

    def meanwhile(path: str, body: Any = None, timeout_s: float = 0) -> Any:
        if path.endswith("/infer") and reloaded_meanwhile:
            watch._reloads_of["m"] += 1
        return call(path, body, timeout_s)

    endpoint.call = meanwhile  # type: ignore[method-assign]
    server.endpoint = endpoint  # type: ignore[attr-defined]
    watch._ask("m", PROBE)
    assert ("m" in watch._suspects) != reloaded_meanwhile


def test_other_errors_are_the_models_own_affair() -> None:
    server = Server()
    server.endpoint = Endpoint(EndpointError(400, "text_input: got …"), iter([1]))  # type: ignore[attr-defined]
    watch, said = watchdog(server)
    watch._ask("m", PROBE)
    assert watch._suspects == {}
    assert said == []


def test_a_model_that_fails_its_probe_twice_is_loaded_again_once() -> None:
    """As one does whose GPU had a fault: its process lives, and answers nothing any more."""
    server = Server()
    broken = Endpoint(EndpointError(500, "compute: got Error"), iter(range(9)))
    server.endpoint = broken  # type: ignore[attr-defined]
    watch, _ = watchdog(server)
    watch._ask("m", PROBE)
    assert watch._suspects == {}
    watch._ask("m", PROBE)
    assert watch._suspects.pop("m") == "its test inference fails (compute: got Error)"
    for _ in range(3):
        watch._ask("m", PROBE)
    assert watch._suspects == {}
    server.endpoint = types.SimpleNamespace(  # type: ignore[attr-defined]
        call=lambda path, body=None, timeout_s=0: {"model_stats": []}, metrics=lambda: ""
    )
    watch._ask("m", PROBE)  # it answers
    server.endpoint = broken  # type: ignore[attr-defined]
    watch._ask("m", PROBE)
    watch._ask("m", PROBE)
    assert "m" in watch._suspects


@pytest.mark.parametrize(
    ("words", "suspect"), [("queue: got 9 sequences waiting", False), ("server: got a …", True)]
)
def test_a_model_that_refuses_to_generate_is_loaded_again_unless_it_is_full(
    words: str, suspect: bool
) -> None:
    server = Server()
    server.endpoint = Endpoint(EndpointError(400, words), itertools.count())  # type: ignore[attr-defined]
    watch, _ = watchdog(server)
    for _ in range(2):
        watch._ask("m", Probe("generate", (ProbeTensor("input_ids", (0,)),)))
    assert ("m" in watch._suspects) == suspect


def test_a_server_that_keeps_dying_is_given_up() -> None:
    server = Server()
    watch, said = watchdog(server)
    watch._restart()
    watch._restart()
    assert watch.failed is None
    assert watch.restarts == 2
    watch._restart()
    assert watch.failed is not None
    assert "3 times within a minute" in watch.failed
    assert "last words" in watch.failed
    assert said[-1] == watch.failed


def test_a_server_that_does_not_start_again_is_tried_again() -> None:
    def launch() -> None:
        raise ServerFailed("no port")

    watch, said = watchdog(Server(launch))
    watch._restart()
    assert watch.restarts == 0
    assert watch.failed is None
    assert said[-1] == "the server did not start (no port)"


def test_a_broken_watchdog_says_so() -> None:
    watch, said = watchdog(Server())

    def broken() -> None:
        raise ValueError("surprise")

    watch._guarded(broken)
    assert watch.failed == "the watchdog failed (ValueError: surprise)"
    assert said == [watch.failed]


def test_a_process_lost_unseen_is_missed() -> None:
    """Whatever became of it: a ready model has as many processes as instances."""
    server = Server()
    server.endpoint = types.SimpleNamespace(  # type: ignore[attr-defined]
        call=lambda path: {"instance_group": [{"count": 2}]}
    )
    watch, _ = watchdog(server)
    watch._pulse._probes["m"] = PROBE
    living = [Stub(1, "m", "1", "m_0_0"), Stub(2, "m", "1", "m_0_1"), Stub(3, "other", "1", "o")]
    server.process.stubs = lambda: living  # type: ignore[method-assign]
    watch._count_processes("m", 1)
    watch._count_processes("m", 1)
    assert watch._suspects == {}
    del living[0]
    watch._count_processes("m", 1)
    assert watch._suspects == {}  # once may be in the middle of a load
    watch._count_processes("m", 1)
    assert watch._suspects == {"m": "1 of 2 processes are left"}
