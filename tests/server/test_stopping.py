"""A server that stops takes no more requests, finishes what it took, and tells the rest."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.server.asking import PATIENCE_S, Asker, ids, until
from tests.server.test_generate import slower_folder
from tests.server.test_lost_requests import (
    completions,
    generate,
    generate_stream,
    grpc_stream,
    infer,
    none_is_in_execute,
    outcome,
)

# For requests to finish, of which there is no hurry.
PATIENT_S = 600
STOPPING = "server: got a request while it stops"
TENSOR = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [5, 6, 7]}
GENERATED = (generate, generate_stream, grpc_stream)
ATTEMPTS = 3
# Many seconds' work of a step each, until all run.
SEQUENCES = 8
LONG = {"max_new_tokens": 2000, "ignore_eos": True, "n": SEQUENCES, "temperature": 1.0}


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"


@pytest.fixture(scope="module")
def repository(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    folders = {
        "write": slower_folder(tmp_path_factory.mktemp("slow")),
        "embed": tiny("bert", "embed"),
    }
    for name, folder in folders.items():
        fp32: dict[str, object] = {"dtype": "float32"}
        deployment = Deployment(device="cpu")
        import_folder(folder, root, name=name, settings=fp32, deployment=deployment, link=True)
    return root


@contextlib.contextmanager
def running(
    repository: Path, exit_timeout_s: int, openai: bool = False
) -> Iterator[tuple[Server, Asker]]:
    """Its watchdog leaves processes alone that the tests stop."""
    port = 0 if openai else None
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": port}
    settings = ServerSettings(exit_timeout_s=exit_timeout_s, watch_interval_s=3600, **ports)
    server = Server([repository], settings, report=print)
    server.start()
    try:
        with Asker(server) as asker:
            yield server, asker
    finally:
        for stub in server.process.stubs():
            os.kill(stub.pid, signal.SIGCONT)
        server.stop()


def frozen(server: Server, model: str) -> int:
    """Stops the model's process: what it has is under way for as long as a test wants."""
    pid = next(stub.pid for stub in server.process.stubs() if stub.model == model)
    os.kill(pid, signal.SIGSTOP)

    def stopped() -> bool:
        """Threads run on until the first of them has got a core to see the signal."""
        try:
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        except OSError:  # of a thread that has ended meanwhile
            return False
        return all(stat.rpartition(") ")[2][0] == "T" for stat in stats)

    until(stopped)
    return pid


class Connected:
    """A client with an open connection to the HTTP port."""

    def __init__(self, server: Server) -> None:
        at = server.endpoint
        self._connection = http.client.HTTPConnection(
            at.reachable, at.http_port, timeout=PATIENCE_S
        )
        assert self.get("health/ready") == 200
        self._connection.auto_open = 0  # only this one

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> int:
        return self._asked("GET", path)[0]

    def infer(self) -> tuple[int, str]:
        return self._asked("POST", "models/embed/infer", json.dumps({"inputs": [TENSOR]}))

    def _asked(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        self._connection.request(method, f"/v2/{path}", body)
        response = self._connection.getresponse()
        return response.status, response.read().decode()


def begun(
    clients: ThreadPoolExecutor, server: Server, asker: Asker
) -> list[Future[tuple[float, str]]]:
    """Requests for long texts, which run, and whose executions have returned. A machine whose disk
    is busy may hold this process up until one is at its end: then others are sent."""

    def running() -> float:
        return asker.metric("fusewire_running", model="write")

    def begin() -> list[Future[tuple[float, str]]]:
        asked = [clients.submit(outcome, ask, server, LONG) for ask in GENERATED]
        all_run = before + SEQUENCES * len(asked)
        until(lambda: running() >= all_run or any(each.done() for each in asked))
        none_is_in_execute(server)
        return asked

    before = running()
    for _ in range(ATTEMPTS):
        found = begin()
        if not any(each.done() for each in found):
            return found
        assert [each.result(PATIENCE_S)[1] for each in found] == [""] * len(found)
        until(lambda: running() <= before)
    pytest.fail(f"{ATTEMPTS} times one of the requests had ended before all of them ran")


def test_it_is_not_ready_and_takes_nothing_while_it_finishes_what_it_took(
    repository: Path,
) -> None:
    with running(repository, PATIENT_S) as (server, asker), ThreadPoolExecutor() as clients:
        connected = Connected(server)
        took = begun(clients, server, asker)
        pid = frozen(server, "write")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        try:
            until(lambda: connected.get("health/ready") != 200)
            assert connected.get("models/embed/ready") != 200
            assert connected.get("health/live") == 200
            until(lambda: connected.infer()[0] == 503)
            assert STOPPING in connected.infer()[1]
            with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{STOPPING}"):
                asker.ask("embed", ids([5, 6, 7]))
            assert not any(each.done() for each in took)
        finally:
            os.kill(pid, signal.SIGCONT)
            connected.close()  # tritonserver waits for open connections
            asker.client.close()
        assert [each.result(PATIENCE_S)[1] for each in took] == [""] * len(took)
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()


@pytest.mark.alone  # on a busy machine tritonserver was seen to end before it had told all clients
def test_what_is_not_finished_in_time_ends_with_an_error(repository: Path) -> None:
    with running(repository, 1, openai=True) as (server, asker), ThreadPoolExecutor(32) as clients:
        others = [clients.submit(outcome, completions, server, LONG)]
        until(lambda: asker.metric("fusewire_running", model="write") >= 1 or others[0].done())
        took = begun(clients, server, asker)
        for model in ("write", "embed"):
            frozen(server, model)
        others.append(clients.submit(outcome, infer, server, LONG))

        def waits_behind_it() -> bool:
            """Nothing shows the one that the stopped process has, but for those behind it."""
            clients.submit(outcome, infer, server, LONG)
            return asker.metric("nv_inference_pending_request_count", model="embed") >= 1

        until(waits_behind_it)
        assert not [each.result() for each in others if each.done()]
        server.stop()
        for each in took:
            assert STOPPING in each.result(PATIENCE_S)[1]
        for each in others:
            assert each.result(PATIENCE_S)[1].startswith("503")


def test_it_says_that_it_stops_while_its_models_are_unloaded(repository: Path) -> None:
    with running(repository, PATIENT_S) as (server, asker):
        assert asker.ask("embed", ids([5, 6, 7]))  # over a connection that stays
        pid = frozen(server, "write")  # which keeps it from being unloaded
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        try:
            until(lambda: "embed" not in {stub.model for stub in server.process.stubs()})
            for model in ("embed", "write"):
                with pytest.raises(InferenceServerException, match=f"UNAVAILABLE.*{STOPPING}"):
                    asker.ask(model, ids([5, 6, 7]))
        finally:
            with contextlib.suppress(ProcessLookupError):  # tritonserver ends it
                os.kill(pid, signal.SIGCONT)
            asker.client.close()
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()
