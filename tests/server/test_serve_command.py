"""`fusewire serve` as a person runs it: a folder, an answer, a clean end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire import Reranker
from fusewire.engine.encoder import EncoderEngine
from fusewire.errors import ConfigurationError
from fusewire.serving.config import Deployment
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from fusewire.serving.supervisor.workplace import Workplace
from fusewire_client import Client
from PIL import Image

from tests.engine.generating import tiny_folder
from tests.hub_stand_in import files_of, stand_in
from tests.images import files
from tests.reference import SENTENCES, tiny_checkpoint
from tests.server import images
from tests.server.asking import PATIENCE_S, until
from tests.server.test_generate import LONG, slow_folder
from tests.tasks.deployed import text_request

COMMITTED = Path(__file__).parents[2] / "model_repository"

COMMAND = (sys.executable, "-m", "fusewire")
STUB = "triton_python_backend_stub"
# More than any end takes that waits for nobody, on a loaded machine; one that waits in vain takes
# the exit timeout.
ENDED_S = 60
PATIENT = "--exit-timeout-s=600"
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
        return found + [f"{pid}: {words}" for pid, words in self.processes().items()]

    def processes(self) -> dict[int, str]:
        """Its processes that live, with their command lines."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                # tritonserver's is a folder in the command's.
                if f"TMPDIR={self.temporary}".encode() in (entry / "environ").read_bytes():
                    words = (entry / "cmdline").read_bytes().decode(errors="replace")
                    found[int(entry.name)] = words
        return found

    def pids(self, words: str) -> set[int]:
        """The processes whose command lines have these words."""
        return {pid for pid, line in self.processes().items() if words in line}

    def ends(self) -> None:
        """Without an error, without traces, and long before the exit timeout of those below."""
        assert self.process.wait(ENDED_S) == 0
        assert self.traces() == []


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*arguments: object) -> Serving:
        started.append(Serving(tmp_path / f"tmp{len(started)}", *arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
        each.process.communicate(timeout=ENDED_S)


def fusewire(*arguments: object) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_given_twice_is_refused_before_anything_starts(minilm: Path) -> None:
    with pytest.raises(ConfigurationError, match="got the name one twice, wanted each once"):
        Server([f"one={minilm}", f"one={minilm}"])


@pytest.mark.alone
def test_a_folder_is_served_asked_and_cleared_away(
    serving: Callable[..., Serving], minilm: Path, tmp_path: Path
) -> None:
    # As the repository is committed: an entry without weights.
    shutil.copytree(COMMITTED, tmp_path, ignore=lambda folder, names: {"1"}, dirs_exist_ok=True)
    began = time.monotonic()
    server = serving(f"minilm={minilm}", tmp_path, "--host=localhost")
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
    assert server.process.wait(ENDED_S) == 0
    assert server.traces() == []


def test_without_stdin_and_stderr_it_serves_all_the_same(tmp_path: Path, minilm: Path) -> None:
    served = [*COMMAND, "serve", f"minilm={minilm}", "--device=cpu", "--json", *ANY_PORTS]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *served, "--openai-port=0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.stdout.close()
        process.terminate()
    assert first
    assert json.loads(first)["models"] == ["minilm"]
    assert process.returncode == 0


def test_a_file_configures_models_one_by_one_and_logs_are_json(
    serving: Callable[..., Serving], minilm: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "fusewire.yaml"
    path.write_text(
        f"""\
openai_port: 0
log_format: json
log_level: info
tritonserver_args: ["--metrics-config", "counter_latencies=false"]
models:
  - name: short
    source: {minilm}
    max_length: 4
  - name: classifier
    source: {tiny("bert", "classify")}
    instances: 2
"""
    )
    server = serving(f"--config={path}")
    ready = server.event()
    assert ready["models"] == ["short", "classifier"]
    stubs = [trace for trace in server.traces() if "triton_python_backend_stub" in trace]
    assert len([trace for trace in stubs if "/classifier/" in trace]) == 2
    long = "a text of more tokens than the four that fit"
    command = [*COMMAND, "ask", "embed", long, "--address", ready["grpc"]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "wanted at most 4" in done.stderr) == (2, True)
    with urllib.request.urlopen(f"http://{ready['metrics']}", timeout=PATIENCE_S) as page:
        text = page.read().decode()
    assert "nv_inference_request_summary_us" in text
    assert "nv_inference_request_duration_us" not in text
    with urllib.request.urlopen(
        f"http://{ready['openai']}/v1/models", timeout=PATIENCE_S
    ) as answer:
        assert answer.status == 200
    server.process.send_signal(signal.SIGTERM)
    _, errors = server.process.communicate(timeout=ENDED_S)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert all({"timestamp", "level", "message"} <= line.keys() for line in lines)
    assert "successfully loaded 'short'" in [
        line["message"] for line in lines if line["logger"] == "fusewire.tritonserver"
    ]
    (asked,) = [line for line in lines if line["logger"] == "fusewire.access"]
    assert (asked["path"], asked["status"]) == ("/v1/models", 200)


def test_chat_and_rerank_are_asked_from_the_command_line(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    writer = tiny_folder(tmp_path / "writer")
    (writer / "chat_template.jinja").write_text("{{ messages[0].role }}: {{ messages[0].content }}")
    tiny_checkpoint(tmp_path / "ranker", "bert", "classify", num_labels=1)
    server = serving(writer, tmp_path / "ranker")
    at = ("--address", server.event()["grpc"])
    few = "--parameter=max_new_tokens=5"
    answer = fusewire("ask", "chat", "hello", few, *at)
    assert answer == fusewire("ask", "generate", "user: hello", few, *at) != "\n"
    rows = json.loads(fusewire("ask", "chat", "hello", "and you", few, *at, "--json"))
    assert [row["text"] for row in rows] == ["hello", "and you"]
    assert rows[0]["output"] + "\n" == answer
    for name in ("n", "num_return_sequences"):
        several = (f"--parameter={name}=2", "--parameter=num_beams=2", few, *at)
        (row,) = json.loads(fusewire("ask", "generate", "hello", *several, "--json"))
        shown = fusewire("ask", "generate", "hello", *several)
        assert shown == "".join(f"{text}\n" for text in row["output"])
        assert len(row["output"]) == 2

    documents = SENTENCES[:5]
    ranked = json.loads(fusewire("ask", "rerank", SENTENCES[6], *documents, *at, "--json"))
    wanted = Reranker(tmp_path / "ranker", device="cpu").rank(SENTENCES[6], documents)
    assert [row["corpus_id"] for row in ranked] == [each["corpus_id"] for each in wanted]
    assert [row["text"] for row in ranked] == [documents[row["corpus_id"]] for row in ranked]
    best = fusewire("ask", "rerank", SENTENCES[6], *documents, *at, "--parameter=top_k=1")
    assert best == f"{ranked[0]['score']:.3f}  {ranked[0]['text']}\n"


def test_serve_says_what_it_serves_and_how_to_ask_it(
    tiny: Callable[..., Path], minilm: Path
) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve", f"fill={tiny('albert', 'fill')}", f"mini={minilm}", *ANY_PORTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"FUSEWIRE_DEVICE": "cpu", "FUSEWIRE_HOST": "0.0.0.0"},
    )
    try:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(shlex.split(line) if line.startswith("  ") else [])
            if line.startswith("Press Ctrl-C"):
                break
        ask = next(words for words in said if words[:1] == ["fusewire"])
        curl = next(words for words in said if words[:1] == ["curl"])
        assert ask[1:3] == ["ask", "fill"]
        assert "candidates" in fusewire(*ask[1:], "--json")
        text = ask.index(next(word for word in ask if "[MASK]" in word))
        lines = fusewire(*ask[1:text], "a [MASK] or a [MASK]", *ask[text + 1 :]).splitlines()
        headings = "mask 1 of 2:", "mask 2 of 2:"
        assert (lines[0], lines[6], len(lines)) == (*headings, 2 * (1 + 5))
        body = curl[curl.index("-d") + 1].encode()
        with urllib.request.urlopen(
            urllib.request.Request(curl[1], body), timeout=PATIENCE_S
        ) as answer:
            assert "candidates" in answer.read().decode()
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=ENDED_S)
    assert ["fill", "fill", "cpu", "float32"] in said
    assert ["mini", "embed", "cpu", "float32"] in said
    assert "warning fusewire.serve: host 0.0.0.0: anyone who reaches this machine" in errors
    assert errors.splitlines()[-1].endswith("info fusewire.serve: stopped reloads=0 restarts=0")


def test_a_flag_that_tritonserver_does_not_know_is_reported_in_its_words(minilm: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", str(minilm), *ANY_PORTS, "--", "--no-such-flag=3"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "unrecognized option '--no-such-flag=3'" in done.stderr
    assert "Print usage" not in done.stderr


@pytest.mark.gpu
def test_a_folder_is_served_on_a_gpu(serving: Callable[..., Serving], minilm: Path) -> None:
    server = serving(f"minilm={minilm}", "--device=cuda", "--instances=2", "--dtype=bfloat16")
    ready = server.event()
    text = fusewire("ask", "embed", "a cat", "a dog", "--address", ready["grpc"])
    assert "similarity" in text
    metrics = f"http://{ready['metrics']}"
    with urllib.request.urlopen(metrics, timeout=PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    held = [line for line in lines if line.startswith("fusewire_allocator_allocated_bytes{")]
    assert len(held) == 1
    assert 'device="cuda:0"' in held[0]
    assert float(held[0].rsplit(" ", 1)[1]) > 40e6  # the weights, in 16 bits
    server.process.send_signal(signal.SIGTERM)
    assert server.event() == {"event": "stopped", "reloads": 0, "restarts": 0}
    assert server.process.wait(ENDED_S) == 0
    assert server.traces() == []


def test_sigterm_after_a_stub_was_killed_does_not_hang(
    serving: Callable[..., Serving], tiny: Callable[..., Path]
) -> None:
    server = serving(tiny("bert", "classify"), PATIENT)
    ready = server.event()
    assert ready["event"] == "ready"
    (stub,) = [int(t.split(":")[0]) for t in server.traces() if "triton_python_backend_stub" in t]
    os.kill(stub, signal.SIGKILL)
    assert "died" in server.event()["text"]
    assert "serving again" in server.event()["text"]
    server.process.send_signal(signal.SIGINT)
    assert server.event() == {"event": "stopped", "reloads": 1, "restarts": 0}
    server.ends()


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Under nohup the tests ignore SIGHUP, and what they start would."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("sign", [signal.SIGHUP, signal.SIGQUIT])
def test_a_lost_terminal_and_its_quit_key_stop_it_as_sigterm_does(
    serving: Callable[..., Serving], tiny: Callable[..., Path], sign: signal.Signals
) -> None:
    server = serving(tiny("bert", "classify"), "--openai-port=0", PATIENT)
    ready = server.event()
    assert ready["event"] == "ready", ready
    server.process.send_signal(sign)
    assert server.event() == {"event": "stopped", "reloads": 0, "restarts": 0}
    server.ends()


def test_it_survives_a_terminal_that_is_gone(
    serving: Callable[..., Serving], tiny: Callable[..., Path]
) -> None:
    server = serving(tiny("bert", "classify"), PATIENT)
    server.event()
    assert server.process.stdout is not None
    server.process.stdout.close()
    (killed,) = server.pids(STUB)
    os.kill(killed, signal.SIGKILL)  # which is reported before it is healed
    until(lambda: server.pids(STUB) - {killed})
    server.process.terminate()
    server.ends()


def test_requests_that_are_read_when_it_is_stopped_are_answered(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    """Triton does not count them as in flight."""
    server = serving(images.classifier(tmp_path / "vit"), PATIENT)
    large = files.encoded(Image.new("RGB", (8000, 8000)), "JPEG")
    ready = server.event()

    def read() -> int:
        """Images of the requests that Triton has given to the model."""
        with urllib.request.urlopen(f"http://{ready['metrics']}", timeout=PATIENCE_S) as page:
            lines = page.read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith("nv_inference_count{"))
        return int(line.rsplit(" ", 1)[1])

    with Client(ready["grpc"]) as client, ThreadPoolExecutor(60) as clients:
        client.label(large)
        began = time.monotonic()
        client.label(large)
        count = math.ceil(9 / (time.monotonic() - began))  # more than unloading may take
        before = read()
        asked = [clients.submit(client.label, large) for _ in range(min(60, count))]
        until(lambda: read() >= before + len(asked))
        assert not all(each.done() for each in asked)
        server.process.terminate()
        for each in asked:
            assert len(each.result()) == 1
    server.ends()


def test_a_second_signal_ends_the_wait_for_requests(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    server = serving(slow_folder(tmp_path / "slow"), "--openai-port=0", PATIENT)
    body = {"model": "slow", "prompt": "x", "max_tokens": LONG, "n": 8, "stream": True}
    body |= {"ignore_eos": True}  # minutes
    url = f"http://{server.event()['openai']}/v1/completions"
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.read(1)
        server.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(2)
        assert answer.read(1)
        server.process.send_signal(signal.SIGINT)
        server.ends()


@pytest.mark.parametrize("words", ["fusewire.serving.openai", "bin/tritonserver"])
def test_a_process_that_hangs_does_not_hold_up_the_end(
    serving: Callable[..., Serving], tiny: Callable[..., Path], words: str
) -> None:
    server = serving(tiny("bert", "classify"), "--openai-port=0", "--exit-timeout-s=1")
    server.event()
    (process,) = server.pids(words)
    os.kill(process, signal.SIGSTOP)
    server.process.terminate()
    server.ends()


def test_reading_a_folder_that_never_ends_is_ended_by_a_signal(
    serving: Callable[..., Serving],
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tokenizers.py").write_text("import time; time.sleep(3600)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    server = serving(tiny("bert", "classify"))
    until(lambda: server.pids("source_process"))
    server.process.terminate()
    assert server.process.wait(ENDED_S) == 0
    until(lambda: not server.traces())  # the reader, if it was just being started, ends by itself


def test_the_supervisor_loads_no_web_framework_tokenizer_or_template(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fusewire", "serve", "--device=cpu"]
    flags = ["--openai-port=0", "--watch-interval-s=0.1", *ANY_PORTS]
    with (
        (tmp_path / "imports").open("w") as imports,
        subprocess.Popen(
            [*command, tiny("albert", "fill"), *flags],
            stdout=subprocess.PIPE,
            stderr=imports,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        assert any(line.startswith("Press Ctrl-C") for line in lines)
        time.sleep(1)  # some test requests of the watchdog
        server.terminate()
    lines = (tmp_path / "imports").read_text().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if "import time:" in line}
    assert {
        "fusewire.serving.supervisor.watchdog",
        "fusewire.serving.supervisor.gateway",
    } <= imported
    assert not {"fastapi", "uvicorn", "starlette", "jinja2", "tokenizers"} & imported


def test_no_process_outlives_a_killed_command_and_the_next_start_removes_what_it_left(
    serving: Callable[..., Serving], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(tiny("bert", "classify"), "--openai-port=0")
    server.event()
    (endpoint,) = server.pids("fusewire.serving.openai")
    os.kill(endpoint, signal.SIGSTOP)
    server.process.kill()
    server.process.wait()
    until(lambda: not server.processes())
    assert server.traces()
    monkeypatch.setenv("TMPDIR", str(server.temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    Workplace().remove()
    assert server.traces() == []


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
