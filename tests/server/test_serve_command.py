"""`fusewire serve` as a person runs it: a folder, an answer, a clean end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine
from fusewire.errors import ConfigurationError
from fusewire.serving.config import Deployment
from fusewire.serving.repository import import_folder
from fusewire.serving.server import Server

from tests.hub_stand_in import files_of, stand_in
from tests.server.asking import until
from tests.tasks.deployed import text_request

COMMITTED = Path(__file__).parents[2] / "model_repository"

COMMAND = (sys.executable, "-m", "fusewire.cli")
ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


class Serving:
    """`fusewire serve … --json` in a temporary directory of its own."""

    def __init__(self, temporary: Path, *arguments: object) -> None:
        self.temporary = temporary
        temporary.mkdir()
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--device=cpu", *map(str, arguments), *ANY_PORTS, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(temporary)},
        )

    def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        event: dict[str, Any] = json.loads(line)
        return event

    def traces(self) -> list[str]:
        """Processes, shared memory and files that belong to it."""
        found = [path.name for path in self.temporary.iterdir()]
        found += [path.name for path in Path("/dev/shm").glob(f"fusewire_{self.process.pid}_*")]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if str(self.temporary) in words:
                    found.append(f"{entry.name}: {words}")
        return found


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*arguments: object) -> Serving:
        started.append(Serving(tmp_path / f"tmp{len(started)}", *arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
        each.process.communicate(timeout=60)


def fusewire(*arguments: object) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_given_twice_is_refused_before_anything_starts(minilm: Path) -> None:
    with pytest.raises(ConfigurationError, match="got the name one twice, wanted each once"):
        Server([f"one={minilm}", f"one={minilm}"])


def test_a_folder_is_served_asked_and_cleared_away(
    serving: Callable[..., Serving], minilm: Path, tmp_path: Path
) -> None:
    # As the repository is committed: an entry without weights.
    shutil.copytree(COMMITTED, tmp_path, ignore=lambda folder, names: {"1"}, dirs_exist_ok=True)
    began = time.monotonic()
    server = serving(f"minilm={minilm}", tmp_path)
    ready = server.event()
    assert time.monotonic() - began < 10  # the promise, from the command to ready
    assert ready["models"] == ["minilm"]
    assert ready["left_out"] == ["all-MiniLM-L6-v2"]
    assert ready["grpc"].startswith("127.0.0.1:")
    words = ["a cat sleeps", "a kitten is asleep", "the stock market fell"]
    text = fusewire("ask", "embed", *words, "--address", ready["grpc"])
    assert "similarity" in text
    rows = json.loads(
        fusewire("ask", "embed", *words, "--address", ready["http"], "--protocol=http", "--json")
    )
    near, far = (
        sum(a * b for a, b in zip(rows[0]["embedding"], rows[other]["embedding"], strict=True))
        for other in (1, 2)
    )
    assert near > far + 0.3
    assert server.traces()
    server.process.send_signal(signal.SIGTERM)
    assert server.event() == {"event": "stopped", "reloads": 0, "restarts": 0}
    assert server.process.wait(30) == 0
    assert server.traces() == []


@pytest.mark.gpu
def test_a_folder_is_served_on_a_gpu(serving: Callable[..., Serving], minilm: Path) -> None:
    server = serving(f"minilm={minilm}", "--device=cuda", "--instances=2", "--dtype=bfloat16")
    ready = server.event()
    text = fusewire("ask", "embed", "a cat", "a dog", "--address", ready["grpc"])
    assert "similarity" in text
    metrics = f"http://{ready['metrics']}"
    with urllib.request.urlopen(metrics, timeout=5) as page:
        lines = page.read().decode().splitlines()
    held = [line for line in lines if line.startswith("fusewire_allocator_allocated_bytes{")]
    assert len(held) == 1
    assert 'device="cuda:0"' in held[0]
    assert float(held[0].rsplit(" ", 1)[1]) > 40e6  # the weights, in 16 bits
    server.process.send_signal(signal.SIGTERM)
    assert server.event() == {"event": "stopped", "reloads": 0, "restarts": 0}
    assert server.process.wait(30) == 0
    assert server.traces() == []


def test_sigterm_after_a_stub_was_killed_does_not_hang(
    serving: Callable[..., Serving], tiny: Callable[..., Path]
) -> None:
    server = serving(tiny("bert", "classify"))
    ready = server.event()
    assert ready["event"] == "ready"
    (stub,) = [int(t.split(":")[0]) for t in server.traces() if "triton_python_backend_stub" in t]
    os.kill(stub, signal.SIGKILL)
    assert "died" in server.event()["text"]
    assert "serving again" in server.event()["text"]
    began = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    assert server.event() == {"event": "stopped", "reloads": 1, "restarts": 0}
    assert server.process.wait(30) == 0
    assert time.monotonic() - began < 6
    assert server.traces() == []


def test_no_server_outlives_a_killed_command(
    serving: Callable[..., Serving], tiny: Callable[..., Path]
) -> None:
    server = serving(tiny("bert", "classify"))
    server.event()
    server.process.kill()
    server.process.wait()
    until(lambda: not [trace for trace in server.traces() if "triton" in trace], 30)


def test_ids_are_fetched_and_served(
    serving: Callable[..., Serving],
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stand_in() as hub:
        hub.commit("owner/tiny", files_of(tiny("bert", "embed", seed=1)), "v1")
        hub.commit("owner/tiny", files_of(tiny("bert", "embed", seed=2)), "main")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        ready = serving("owner/tiny@v1", "newer=owner/tiny").event()
        assert ready["models"] == ["tiny", "newer"]
        answers = [
            fusewire("ask", "embed", "a", f"--model={name}", "--address", ready["grpc"], "--json")
            for name in ready["models"]
        ]
    for seed, answer in zip((1, 2), answers, strict=True):
        wanted = EncoderEngine(tiny("bert", "embed", seed=seed), "embed")
        [got] = wanted.answer([text_request("a")])
        np.testing.assert_allclose(
            json.loads(answer)[0]["embedding"], got["embedding"][0], atol=1e-5
        )


def test_a_model_that_cannot_load_is_reported_in_words(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    entry = import_folder(
        tiny("bert", "classify"), tmp_path, name="cut", deployment=Deployment(device="cpu")
    )
    weights = entry / "1" / "model.safetensors"  # damaged after it was checked
    weights.write_bytes(weights.read_bytes()[:-100])
    done = subprocess.run(
        [*COMMAND, "serve", str(tmp_path), *ANY_PORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fusewire: cut: model.safetensors")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
