"""The command line without a server: words for people, JSON for machines, one line for errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fusewire import __main__, __version__, cli, devices
from fusewire.errors import ConfigurationError
from fusewire.models.registry import ARCHITECTURES, DECODERS
from fusewire.serving.asking import read_parameters
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
)

from tests.models.tiny_decoders import tiny_decoder
from tests.reference import tiny_checkpoint

NO_FOLDER_NO_ID = "no such folder; give the path of a Hugging Face model folder, or a model's id"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["fusewire", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fusewire {__version__}\n"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("import", ModelSettings),
        ("import", GeneratorSettings),
        ("import", Deployment),
        ("serve", GeneratorSettings),
        ("serve", ServerSettings),
    ],
)
def test_every_setting_is_a_flag(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    settings: type[ModelSettings | GeneratorSettings | Deployment | ServerSettings],
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    text = capsys.readouterr().out
    for name in settings.model_fields:
        assert (f"--{name.replace('_', '-')}" in text) == (name != "reloads"), name


def test_import_writes_an_entry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_checkpoint(tmp_path / "folder", "bert")
    repository = tmp_path / "repository"
    code = run(
        monkeypatch,
        "import",
        tmp_path / "folder",
        "--name=tiny",
        f"--repository={repository}",
        "--truncate",
        "--pooling=cls",
        "--instances=2",
        "--device=cuda:1",
        "--dtype=bfloat16",
        "--no-graphs",
        "--json",
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "tiny",
        "path": str(repository / "tiny"),
    }
    text = (repository / "tiny" / "config.pbtxt").read_text()
    assert 'string_value: "cls"' in text
    assert "count: 2\n  gpus: 1\n  kind: KIND_GPU\n" in text
    assert 'key: "dtype"\n  value {\n    string_value: "bfloat16"' in text
    assert 'key: "graphs"\n  value {\n    string_value: "false"' in text


def test_serve_says_what_it_has_no_gpu_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "cuda_built", lambda: True)
    monkeypatch.setattr(devices, "found", lambda: [])
    tiny_checkpoint(tmp_path / "tiny", "bert")
    capsys.readouterr()
    assert run(monkeypatch, "serve", tmp_path / "tiny", "--device=cuda", "--instances=2") == 2
    text = capsys.readouterr().err
    assert text.startswith("fusewire: tiny: instance_group: got KIND_GPU, wanted KIND_CPU: this")
    assert "nvidia-smi" in text
    assert "--device cpu" in text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json: not valid JSON"),
        ('{"model_type": "x", "architectures": ["XModel"]}', "config.json: model_type: got 'x'"),
    ],
)
def test_serve_names_the_folder_at_fault(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    config: str,
    words: str,
) -> None:
    for name in ("good", "bad"):
        tiny_checkpoint(tmp_path / name, "bert")
    capsys.readouterr()
    (tmp_path / "bad" / "config.json").write_text(config)
    assert run(monkeypatch, "serve", tmp_path / "good", tmp_path / "bad") == 2
    assert capsys.readouterr().err.startswith(f"fusewire: {tmp_path}/bad: {words}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "/nowhere"], f"/nowhere: {NO_FOLDER_NO_ID}"),
        (["serve", "/nowhere"], f"/nowhere: {NO_FOLDER_NO_ID}"),
        (["serve", "a=/nowhere"], f"/nowhere: {NO_FOLDER_NO_ID}"),
        (["serve", "a b=/nowhere"], "name: got 'a b'"),
        (["serve", "/tmp", "--watch-interval-s=0"], "watch_interval_s: got '0.0'"),
        (["serve", "/tmp", "--device=gpu"], "device: got 'gpu'"),
        (["import", "/tmp", "--device=cuda:0,0"], "device: got 'cuda:0,0'"),
        (["check", "/nowhere"], f"/nowhere: {NO_FOLDER_NO_ID}"),
        (["check", "/nowhere", "--device=auto"], "no such folder"),
        (["check", "/nowhere", "--device=cuda:0,1"], "device: got 'cuda:0,1', wanted one of auto"),
        (["ask", "sing", "la"], "task: got 'sing'"),
        (["ask", "answer", "Who?"], "wanted one each"),
        (["ask", "embed", "x", "--parameter", "truncate"], "wanted KEY=VALUE"),
        *(
            (["ask", "embed", "x", "--address=127.0.0.1:9", protocol], "no server that is ready at")
            for protocol in ("--protocol=grpc", "--protocol=http")
        ),
    ],
)
def test_an_error_is_one_clear_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    text = capsys.readouterr().err
    assert words in text
    assert text.startswith("fusewire: ")
    assert text.count("\n") == 1


def test_a_repository_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_checkpoint(tmp_path / "folder", "bert")
    capsys.readouterr()
    (tmp_path / "file").touch()
    command = ["import", tmp_path / "folder", "--name=tiny", f"--repository={tmp_path}/file"]
    assert run(monkeypatch, *command) == 2
    text = capsys.readouterr().err
    assert text.startswith(
        f"fusewire: {tmp_path}/file/tiny: got 'Not a directory', wanted to write"
    )
    assert text.count("\n") == 1


def test_an_interrupt_while_the_command_is_imported_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *others: object) -> None:
            if name == "fusewire.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "fusewire.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit, match="130"):
        __main__.main()
    assert capsys.readouterr().err == ""


def test_models_lists_the_architectures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models") == 0
    text = capsys.readouterr().out
    assert run(monkeypatch, "models", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model_type"] for row in rows] == [*ARCHITECTURES, *DECODERS]
    assert all(name in text for name in (*ARCHITECTURES, *DECODERS))
    assert {tuple(row["tasks"]) for row in rows if row["model_type"] in DECODERS} == {("generate",)}


def test_doctor_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    assert run(monkeypatch, "doctor", "--json", *ports) == 0
    findings = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"kernels", "GPUs", "tritonserver", "shared memory", "Hugging Face"} <= findings.keys()
    assert run(monkeypatch, "doctor", *ports, "--tritonserver=/nowhere") == 1
    assert "correct the path" in capsys.readouterr().out


def test_check_compares_with_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_checkpoint(tmp_path, "bert", "classify")
    assert run(monkeypatch, "check", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert run(monkeypatch, "check", tmp_path, "--tolerance=0") == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_check_of_a_decoder_says_how_many_greedy_tokens_are_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_decoder(tmp_path, "mistral")
    assert run(monkeypatch, "check", tmp_path, "--sequences=3") == 0
    words = capsys.readouterr().out
    assert "MistralForCausalLM, task generate: 3 sequences" in words
    assert "greedy tokens: 48 of 48 equal" in words
    assert run(monkeypatch, "check", tmp_path, "--json", "--tolerance=0") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["greedy_equal"] == found["greedy_tokens"] == 8 * 16


def test_request_parameters_keep_their_types() -> None:
    assert read_parameters(["truncate=true", "top_k=3", "pooling=cls", "x=1.5"]) == {
        "truncate": True,
        "top_k": 3,
        "pooling": "cls",
        "x": 1.5,
    }
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        read_parameters(["=3"])
