"""A request that its client has left is not computed to its end, and harms none beside it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.reference import tiny_checkpoint
from tests.server.asking import Asker, _inputs, ids, until

# Seconds of work of one thread, a row a micro-batch; a batch has room for more.
ROWS, LENGTH = 120, 1024
POLLED_S = 1.0  # within it the count of tokens is up to date
SHORT = [101, 7, 8, 102]


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Asker]:
    if device != "cpu":
        pytest.skip("a GPU is through before its client can leave")
    root, folder = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("slow")
    tiny_checkpoint(folder, "bert", max_length=LENGTH, hidden_size=256, intermediate_size=1024)
    import_folder(
        folder,
        root,
        name="slow",
        settings={"task": "embed", "max_batch_tokens": LENGTH, "threads": 1},
        deployment=Deployment(device=device, queue_delay_us=1_000_000),
        link=True,
    )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    # No test requests of the watchdog: executions are counted.
    settings = ServerSettings(log_level="error", watch_interval_s=3600, **ports)
    with Server([root], settings) as server, Asker(server, device) as asker:
        yield asker


def outcomes(asker: Asker, outcome: str) -> float:
    return asker.metric("fusewire_requests_total", model="slow", outcome=outcome)


def executions(asker: Asker) -> int:
    return asker.executions("slow")[0]


def test_what_is_late_is_not_computed(asker: Asker) -> None:
    asker.ask("slow", ids(SHORT))
    time.sleep(POLLED_S)
    before = asker.metric("fusewire_tokens_total", model="slow")
    with pytest.raises(
        InferenceServerException, match=r"UNAVAILABLE.*timeout: got a request whose"
    ):
        asker.client.infer("slow", _inputs(ids(SHORT)), timeout=1)
    until(lambda: outcomes(asker, "rejected") == 1)
    time.sleep(POLLED_S)
    assert asker.metric("fusewire_tokens_total", model="slow") == before


def test_cancelled_work_stops_at_the_next_micro_batch(asker: Asker) -> None:
    answered, executed = outcomes(asker, "ok"), executions(asker)  # warm-up
    before = asker.metric("fusewire_tokens_total", model="slow") + len(SHORT)
    alone = asker.ask("slow", ids(SHORT))["embedding"]
    until(lambda: outcomes(asker, "ok") == answered + 1)
    # The metric follows the answers.
    until(lambda: asker.metric("fusewire_tokens_total", model="slow") == before)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(inputs: Any) -> Any:
        return asker.client.async_infer(
            "slow", _inputs(inputs), lambda result, error: events.put(error or result)
        )

    long = ask(ids(*[[101, *[7] * (LENGTH - 2), 102]] * ROWS))
    ask(ids(SHORT))  # in the same execution
    # It did not wait for the other.
    asker.same(events.get(timeout=30).as_numpy("embedding"), alone)
    long.cancel()
    assert "CANCELLED" in str(events.get(timeout=30).status())
    asker.same(asker.ask("slow", ids(SHORT))["embedding"], alone)
    until(lambda: executions(asker) == executed + 3)  # which counts when answers are on their way
    until(lambda: outcomes(asker, "ok") == answered + 3)
    assert outcomes(asker, "cancelled") == 1

    def computed() -> float:
        return asker.metric("fusewire_tokens_total", model="slow") - before - 2 * len(SHORT)

    # The metric follows. Whole micro-batches, of which the first was begun before the cancellation.
    until(lambda: computed() > 0 and computed() % LENGTH == 0)
    assert computed() < ROWS * LENGTH / 2
