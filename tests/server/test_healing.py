"""Healing loads what served: bad folders, crashes and huge requests end no service."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fusewire.serving import backoff
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.endpoint import EndpointError
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import memory
from fusewire.serving.supervisor.server import Server
from fusewire_client import Client, Unavailable
from tritonclient.utils import InferenceServerException

from tests.server.asking import Asker, ids, until

QUESTION = ids([5, 6, 7])
MEMORY_LIMIT_MIB = 512


class Healed:
    """A server whose tests load models of their own beside the model `base`."""

    def __init__(self, repository: Path, checkpoints: list[Path]) -> None:
        self.repository, self._checkpoints = repository, checkpoints
        self.said: list[str] = []
        settings = ServerSettings(
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            openai_port=0,
            exit_timeout_s=3,
            watch_interval_s=0.5,
            access_log=False,
            memory_limit_mib=MEMORY_LIMIT_MIB,
        )
        self.place("base")
        self.server = Server([repository], settings, report=self._note)
        self.server.start()
        self.asker = Asker(self.server)

    def _note(self, text: str) -> None:
        print(f"{time.monotonic():.2f} {text}")  # shown where a test fails
        self.said.append(text)

    def place(self, name: str, version: int = 1, seed: int = 0) -> Path:
        """Imports a checkpoint; returns the repository entry."""
        return import_folder(
            self._checkpoints[seed],
            self.repository,
            name=name,
            settings={"dtype": "float32"},
            deployment=Deployment(device="cpu", version=version),
        )

    def load(self, name: str) -> np.ndarray:
        """As an operator does; returns the model's answer. The watchdog has seen it then."""
        self.server.load(name)
        until(lambda: self._pinned(name) == self._serving(name))
        return self.answer(name)

    def _pinned(self, name: str) -> set[int]:
        pin = self.server.pins.get(name)
        return set() if pin is None else set(pin.versions)

    def _serving(self, name: str) -> set[int]:
        rows = [row for row in self.server.index() if row["name"] == name]
        return {int(row["version"]) for row in rows if row.get("state") == "READY"}

    def answer(self, name: str) -> np.ndarray:
        return self.asker.ask(name, QUESTION)["embedding"]

    def answers(self, name: str, wanted: np.ndarray) -> bool:
        try:
            return bool(np.array_equal(self.answer(name), wanted))
        except InferenceServerException:
            return False

    def ready(self, path: str) -> bool:
        try:
            self.server.endpoint.call(f"{path}/ready")
        except EndpointError:
            return False
        return True

    def kill_model(self, name: str) -> None:
        for stub in self.server.process.stubs():
            if stub.model == name:
                os.kill(stub.pid, signal.SIGKILL)

    def kill_server(self) -> None:
        """Returns when it is up again."""
        restarts = self.server.watchdog.restarts
        os.kill(self.server.process.pid, signal.SIGKILL)
        until(lambda: self.server.watchdog.restarts > restarts)

    def crash(self) -> None:
        """Returns when it is up again, and not before the watchdog knows: who crashes it while it
        is still being started fails that start."""
        restarts = self.server.watchdog.restarts

        def goes_on(pid: int) -> bool:
            same = self.server.process.pid == pid and self.server.process.running()
            return same and self.ready("models/base")

        while self.server.watchdog.restarts == restarts:
            pid = self.server.process.pid
            self.huge(2**61)  # writes where it should not: mostly a crash, seldom a hung request
            until(lambda pid=pid: self.server.watchdog.restarts > restarts or goes_on(pid))
        until(lambda: self.ready("models/base"))

    def huge(self, elements: int) -> None:
        """A small body that claims a huge tensor, to Triton's own HTTP port."""
        tensor = {"name": "input_ids", "shape": [1, elements], "datatype": "INT64", "data": [1]}
        with pytest.raises(EndpointError) as caught:
            self.server.endpoint.call("models/base/infer", {"inputs": [tensor]}, timeout_s=10)
        assert caught.value.status == 0  # the connection was lost with the server


@pytest.fixture(scope="module")
def healed(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Healed]:
    checkpoints = [tiny("bert", "embed", seed=seed) for seed in (0, 1)]
    healed = Healed(tmp_path_factory.mktemp("healed"), checkpoints)
    with healed.asker:
        yield healed
        healed.server.stop()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "_FIRST_S", 0.1)
    monkeypatch.setattr(backoff, "_LAST_S", 0.5)


def truncate(version: Path) -> None:
    weights = version / "model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()  # a server has the old one mapped
    weights.write_bytes(whole[:1000])


def test_a_version_that_does_not_load_ends_nothing(healed: Healed) -> None:
    healed.place("refused")
    served = healed.load("refused")
    truncate(healed.place("refused", version=2, seed=1) / "2")
    with pytest.raises(EndpointError, match="truncated"):
        healed.server.load("refused")
    assert healed.answers("refused", served)
    assert healed.ready("models/refused")
    assert healed.ready("health")
    reloads = healed.server.watchdog.reloads
    healed.kill_model("refused")
    until(lambda: healed.server.watchdog.reloads > reloads)
    assert healed.answers("refused", served)


def test_a_dead_server_comes_back_with_all_models_that_load(healed: Healed) -> None:
    served = {}
    for name in ("newer", "gone", "broken"):
        healed.place(name)
        served[name] = healed.load(name)
    truncate(healed.place("newer", version=2, seed=1) / "2")
    (healed.repository / "gone" / "config.pbtxt").unlink()
    whole = healed.repository / "broken" / "1" / "model.safetensors"
    kept = healed.repository.parent / "kept.safetensors"
    shutil.copy(whole, kept)
    truncate(healed.repository / "broken" / "1")
    healed.kill_server()
    assert healed.ready("models/base")
    until(lambda: all(healed.answers(name, served[name]) for name in ("newer", "gone")))
    until(lambda: any("broken: could not be loaded again" in text for text in healed.said))
    assert healed.ready("health")
    assert not healed.ready("models/broken")
    os.replace(kept, whole)
    until(lambda: healed.answers("broken", served["broken"]))


def test_what_an_operator_does_is_kept(healed: Healed) -> None:
    healed.place("moving")
    first = healed.load("moving")
    healed.place("moving", version=2, seed=1)
    second = healed.load("moving")
    assert not np.array_equal(first, second)
    healed.place("away")
    healed.load("away")
    healed.server.unload("away")
    until(lambda: healed.server.pins.get("away") is None)
    shutil.rmtree(healed.repository / "moving" / "1")
    healed.kill_server()
    until(lambda: healed.answers("moving", second))
    assert not healed.ready("models/away")


@pytest.mark.parametrize("crashes", [2, pytest.param(7, marks=pytest.mark.sweep)])
def test_crashes_of_the_server_never_end_the_service(healed: Healed, crashes: int) -> None:
    """And clients get errors meanwhile that say so."""
    at = healed.server.endpoint
    ended = threading.Event()
    seen: Counter[object] = Counter()

    def over_grpc() -> None:
        with Client(f"{at.reachable}:{at.grpc_port}", retries=0) as client:
            while not ended.wait(0.05):
                try:
                    client.embed(ids=[[5, 6, 7]], model="base", timeout_s=30)
                    seen["answer"] += 1
                except Unavailable:
                    seen["unavailable"] += 1
                except Exception as error:
                    seen[f"{type(error).__name__}: {error}"] += 1

    def over_openai() -> None:
        assert healed.server.openai is not None
        body = json.dumps({"model": "base", "input": "a text"}).encode()
        request = urllib.request.Request(
            f"http://{healed.server.openai.address}/v1/embeddings",
            body,
            {"Content-Type": "application/json"},
        )
        while not ended.wait(0.05):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    seen[answer.status] += 1
            except urllib.error.HTTPError as error:
                seen[error.code] += 1

    clients = [threading.Thread(target=each, daemon=True) for each in (over_grpc, over_openai)]
    for client in clients:
        client.start()
    until(lambda: seen["answer"] and seen[200])
    for _ in range(crashes):
        healed.crash()
    ended.set()
    for client in clients:
        client.join()
    assert set(seen) <= {"answer", "unavailable", 200, 503}, seen
    assert min(seen["answer"], seen["unavailable"], seen[200], seen[503]) > 0, seen


def test_the_memory_of_the_server_is_bounded(healed: Healed) -> None:
    """Such a request lets it take 16 GB."""
    served = healed.answer("base")
    attack = threading.Thread(target=healed.huge, args=(2**31,), daemon=True)
    attack.start()
    peak_bytes = 0

    def ended() -> bool:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, memory.resident(healed.server.process.pid).anonymous_bytes)
        return any("MiB of --memory-limit-mib; ending it" in text for text in healed.said)

    until(ended, seconds=60)
    attack.join()
    assert peak_bytes < (MEMORY_LIMIT_MIB + 1024) << 20
    until(lambda: healed.answers("base", served))
