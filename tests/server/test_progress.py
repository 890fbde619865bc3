"""Slow is not hung: whatever takes long is answered, and what has stopped is still replaced."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.engine.generating import END, byte_tokenizer
from tests.server.asking import Asker, ids, until
from tests.server.streaming import asked, generate
from tests.server.stuck_thread import busiest_thread, stick

ROWS, LENGTH = 56, 512
PROMPT = 8000
WATCH_TIMEOUT_S = 1
# For work that takes much longer than the watchdog waits, on a machine that is busy.
ANSWERED_S = 180
# Several times what a micro-batch takes.
HEALED_S = 60


@pytest.fixture(scope="module")
def device() -> str:
    """Only on CPUs does one request take seconds."""
    return "cpu"


@pytest.fixture(scope="module")
def slow_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=8192, n_embd=384, n_layer=10, n_head=6, eos_token_id=END
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def server(
    minilm: Path, slow_gpt2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    deployment = Deployment(device="cpu")
    for name, folder, settings in (
        ("one-micro-batch", minilm, {"max_length": LENGTH, "max_batch_tokens": ROWS * LENGTH}),
        ("micro-batches", minilm, {"max_length": LENGTH, "max_batch_tokens": 2048}),
        ("one-step", slow_gpt2, {"max_batch_tokens": 8192}),
    ):
        # One thread: as slow on a machine of many cores.
        fp32: dict[str, object] = {"dtype": "float32", "threads": 1, **settings}
        import_folder(folder, root, name=name, settings=fp32, deployment=deployment, link=True)
    settings = ServerSettings(
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        watch_interval_s=0.2,
        watch_timeout_s=WATCH_TIMEOUT_S,
    )
    with Server([root], settings, report=print) as server:
        yield server


@pytest.fixture
def asker(server: Server) -> Iterator[Asker]:
    with Asker(server) as asker:
        yield asker


@pytest.fixture(autouse=True)
def nothing_was_loaded_again(request: pytest.FixtureRequest, server: Server) -> Iterator[None]:
    before = server.watchdog.reloads
    yield
    if "replaced" not in request.node.name:
        assert server.watchdog.reloads == before


@pytest.mark.parametrize("model", ["one-micro-batch", "micro-batches"])
def test_an_execution_may_take_longer_than_the_watchdog_waits(asker: Asker, model: str) -> None:
    began = time.monotonic()
    (answer,) = asker.ask(model, ids(*[[5] * LENGTH] * ROWS), timeout_s=ANSWERED_S).values()
    assert len(answer) == ROWS
    assert time.monotonic() - began > 2 * WATCH_TIMEOUT_S  # else the test shows nothing


def test_many_clients_together_are_all_answered(asker: Asker) -> None:
    def ask(_: int) -> int:
        answer = asker.ask("micro-batches", ids([5] * LENGTH), timeout_s=ANSWERED_S)
        return len(answer)

    with ThreadPoolExecutor(ROWS) as clients:
        assert list(clients.map(ask, range(ROWS))) == [1] * ROWS


def test_a_long_prompt_may_take_longer_than_the_watchdog_waits(server: Server) -> None:
    began = time.monotonic()
    status, answer = generate(server, "one-step", asked("a" * PROMPT, max_new_tokens=2))
    assert status == 200, answer
    assert time.monotonic() - began > 2 * WATCH_TIMEOUT_S


def only_process(server: Server, model: str) -> int:
    """Of a model with one instance: one that was replaced may still be ending."""

    def processes_of_it() -> list[int]:
        return [stub.pid for stub in server.process.stubs() if stub.model == model]

    until(lambda: len(processes_of_it()) == 1)
    (pid,) = processes_of_it()
    return pid


@pytest.mark.parametrize("busy", [True, False])
def test_a_stopped_process_is_replaced_busy_or_not(
    server: Server, asker: Asker, busy: bool
) -> None:
    model, reloads = "micro-batches", server.watchdog.reloads
    pid = only_process(server, model)
    lost: list[str] = []

    def long() -> None:
        try:
            asker.ask(model, ids(*[[5] * LENGTH] * ROWS), timeout_s=ANSWERED_S)
        except InferenceServerException as error:
            lost.append(json.dumps(str(error)))

    client = threading.Thread(target=long)
    if busy:
        before = asker.metric("fusewire_tokens_total", model=model)
        client.start()
        until(lambda: asker.metric("fusewire_tokens_total", model=model) > before)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: server.watchdog.reloads == reloads + 1, HEALED_S)
    assert asker.ask(model, ids([5, 6, 7]))
    if busy:
        client.join(HEALED_S)
        assert len(lost) == 1


def test_a_process_whose_computing_thread_hangs_is_replaced(server: Server, asker: Asker) -> None:
    """Its other threads go on: to Triton the process is healthy."""
    model, reloads = "micro-batches", server.watchdog.reloads
    pid = only_process(server, model)
    before = asker.metric("fusewire_tokens_total", model=model)
    with ThreadPoolExecutor() as clients:
        long = ids(*[[5] * LENGTH] * ROWS)
        lost = clients.submit(asker.ask, model, long, timeout_s=ANSWERED_S)
        until(lambda: asker.metric("fusewire_tokens_total", model=model) > before)
        stick(busiest_thread(pid))
        waiting = clients.submit(asker.ask, model, ids([5, 6, 7]), timeout_s=ANSWERED_S)
        until(lambda: server.watchdog.reloads == reloads + 1, HEALED_S)
        for each in (lost, waiting):
            with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
                each.result(HEALED_S)
    assert asker.ask(model, ids([5, 6, 7]))
