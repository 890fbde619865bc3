"""The process of a model dies: every request that it had, or that was queued for it, ends with an
error soon, whichever way it came."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.server.asking import PATIENCE_S, Asker, ids, until
from tests.server.recovery import Recovery
from tests.server.streaming import Stream, asked
from tests.server.test_generate import slower_folder

CLIENTS = 60
ENDED_S = 30.0  # while the server recovers, on a busy machine; a lost request would never end
LONG = {"max_new_tokens": 6000, "ignore_eos": True}
SHORT = {"max_new_tokens": 1}

Ask = Callable[[Server, dict[str, object]], None]


class Refused(Exception):
    """An answer that is an error, with its words."""


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    for name, folder, instances in (
        ("write", slower_folder(tmp_path_factory.mktemp("slow")), 1),
        ("embed", tiny("bert", "embed"), 1),
        ("two", tiny("bert", "embed"), 2),
    ):
        deployment = Deployment(device="cpu", instances=instances)
        fp32: dict[str, object] = {"dtype": "float32"}
        import_folder(folder, root, name=name, settings=fp32, deployment=deployment, link=True)
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, openai_port=0)
    with Server([root], settings, report=print) as server:
        yield server


def posted(port: int, path: str, body: dict[str, object]) -> None:
    """Returns after an answer, and raises Refused after an error, also one within a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read().decode()
    finally:
        connection.close()
    if response.status != 200 or '"error"' in answer:
        raise Refused(f"{response.status} {answer}")


def generate(server: Server, parameters: dict[str, object]) -> None:
    posted(server.endpoint.http_port, "/v2/models/write/generate", asked("a", **parameters))


def generate_stream(server: Server, parameters: dict[str, object]) -> None:
    body = {"stream": True, **asked("a", **parameters)}
    posted(server.endpoint.http_port, "/v2/models/write/generate_stream", body)


def grpc_stream(server: Server, parameters: dict[str, object]) -> None:
    try:
        with Stream(server, "write", "a", **parameters) as stream:
            stream.text()
    except InferenceServerException as error:
        raise Refused(str(error)) from None


def completions(server: Server, parameters: dict[str, object]) -> None:
    others = {name: value for name, value in parameters.items() if name != "max_new_tokens"}
    wanted = {"max_tokens": parameters["max_new_tokens"], **others}
    body: dict[str, object] = {"model": "write", "prompt": "a", **wanted}
    assert server.openai is not None
    posted(int(server.openai.address.rpartition(":")[2]), "/v1/completions", body)


def infer(server: Server, parameters: dict[str, object]) -> None:
    tensor = {"name": "input_ids", "shape": [1, 4], "datatype": "INT64", "data": [5, 6, 7, 8]}
    posted(server.endpoint.http_port, "/v2/models/embed/infer", {"inputs": [tensor]})


def none_is_in_execute(server: Server) -> None:
    """Triton itself ends a request whose process stops or dies in `execute`, in words of its own.
    An instance executes one after the other: behind this answer the earlier ones have returned."""
    with pytest.raises(Refused, match="max_new_tokens"):
        generate(server, {"max_new_tokens": 0})


def kill(server: Server, model: str) -> None:
    pid = next(stub.pid for stub in server.process.stubs() if stub.model == model)
    os.kill(pid, signal.SIGKILL)


def outcome(ask: Ask, server: Server, parameters: dict[str, object]) -> tuple[float, str]:
    """(when it ended, the words of its error)"""
    try:
        ask(server, parameters)
    except (Refused, OSError, http.client.HTTPException) as error:
        return time.monotonic(), str(error)
    return time.monotonic(), ""


@pytest.fixture
def recovery(server: Server) -> Iterator[Recovery]:
    """From the death that the test causes; the next test begins when all is well again."""
    recovery = Recovery(server)
    yield recovery
    until(lambda: recovery)


@pytest.mark.parametrize("ask", [generate, generate_stream, grpc_stream, completions])
def test_generations_of_a_process_that_dies_end_with_an_error(
    server: Server, recovery: Recovery, ask: Ask
) -> None:
    with Asker(server) as asker, ThreadPoolExecutor(2 * CLIENTS) as clients:
        begun = [clients.submit(outcome, ask, server, LONG) for _ in range(CLIENTS)]
        until(
            lambda: (
                asker.metric("fusewire_running", model="write") >= CLIENTS
                or any(each.done() for each in begun)
            )
        )
        none_is_in_execute(server)
        assert not [each.result() for each in begun if each.done()]
        kill(server, "write")
        later = [clients.submit(outcome, ask, server, SHORT) for _ in range(CLIENTS)]
        until(lambda: recovery)
        recovered_at = time.monotonic()
        ends = [request.result() for request in begun]
        assert all(words for _, words in ends)
        unnamed = [words for _, words in ends if "try again" not in words]
        assert not unnamed or recovery.server_died, unnamed[:3]
        ends += [request.result() for request in later]
        assert max(when for when, _ in ends) < recovered_at + ENDED_S
        until(lambda: outcome(ask, server, SHORT)[1] == "")


def test_queued_requests_of_an_encoder_that_dies_end_with_an_error(
    server: Server, recovery: Recovery
) -> None:
    ended = threading.Event()
    waits: list[float] = []
    errors: list[str] = []

    def work() -> None:
        while not ended.is_set():
            began = time.monotonic()
            when, words = outcome(infer, server, {})
            waits.append(when - began)
            if words:
                errors.append(words)

    with ThreadPoolExecutor(CLIENTS) as clients:
        running = [clients.submit(work) for _ in range(CLIENTS)]
        until(lambda: len(waits) > CLIENTS)
        kill(server, "embed")
        until(lambda: recovery)
        answered = len(waits)
        until(lambda: len(waits) > answered + 2 * CLIENTS)
        ended.set()
    for each in running:
        each.result()
    assert max(waits) < ENDED_S
    assert errors
    unnamed = [error for error in errors if not error.startswith("503")]
    assert not unnamed or recovery.server_died, unnamed[:3]


def test_the_other_instance_answers_while_one_is_replaced(
    server: Server, recovery: Recovery
) -> None:
    with Asker(server) as asker:
        killed = time.monotonic()
        kill(server, "two")
        answers, errors = 0, []
        while not recovery or answers + len(errors) < 100:
            try:
                answers += bool(asker.ask("two", ids([5, 6, 7])))
            except InferenceServerException as error:
                errors.append(str(error))
        if not recovery.server_died:
            assert all("UNAVAILABLE" in error for error in errors)
            assert len(errors) < 2 + time.monotonic() - killed  # about one a second
        assert answers
