"""The command line without a server: words for people, JSON for machines, one line for errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fusewire import __main__, __version__, cli, devices
from fusewire.errors import ConfigurationError
from fusewire.models.registry import (
    ARCHITECTURES,
    DECODERS,
    IMAGE_ENCODERS,
    SEQ2SEQ_ENCODERS,
    SPEECH,
)
from fusewire.serving.asking import read_parameters, streams
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
)
from fusewire.serving.supervisor import server, sources

from tests.engine.generating import tiny_folder
from tests.models.tiny_decoders import tiny_decoder
from tests.reference import tiny_checkpoint

NO_FOLDER_NO_ID = "no such folder; give the path of a Hugging Face model folder, or a model's id"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object, columns: int = 400) -> int:
    monkeypatch.setattr(sys, "argv", ["fusewire", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", str(columns))
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
        is_flag = name not in ("reloads", "tritonserver_args")
        assert (f"--{name.replace('_', '-')}" in text) == is_flag, name


@pytest.mark.parametrize("command", ["", "import", "serve", "ask", "check", "doctor", "models"])
def test_help_fits_80_columns_and_is_asked_for_by_h(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(monkeypatch, *command.split(), "-h", columns=80) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "-h, --help" in text


def test_flags_stand_in_sections_with_default_and_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "serve", "--help", columns=80) == 0
    text = capsys.readouterr().out
    titles = ["Server", "Model", "Batching", "Generation", "Security", "Logging"]
    places = [text.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    assert places[2] < text.index("--queue-delay-us MICROSECONDS") < places[3]
    assert "[0 to 65535; default: 8000] [env: FUSEWIRE_HTTP_PORT]" in " ".join(text.split())


def test_a_terminal_without_a_character_gets_its_number() -> None:
    command = [sys.executable, "-m", "fusewire", "models"]
    ascii_alone = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    ended = subprocess.run(command, env=ascii_alone, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\u2026" in ended.stdout


def test_a_full_disk_is_named_once() -> None:
    command = [sys.executable, "-m", "fusewire", "models"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "fusewire: No space left on device\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    words = "fusewire serve --openai"
    monkeypatch.setenv("_FUSEWIRE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    run(monkeypatch)
    printed = capsys.readouterr()
    assert "--openai-port" in printed.out
    assert "--host" not in printed.out
    assert printed.err == ""


def configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> dict[str, Any]:
    """What `serve --print-config` prints."""
    assert run(monkeypatch, "serve", "--print-config", *arguments) == 0
    printed: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return printed


def test_a_flag_goes_before_its_variable_before_the_file_before_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "fusewire.yaml"
    path.write_text(
        "http_port: 1\ngrpc_port: 1\nmetrics_port: 1\n"
        "models: [{source: a, device: cpu, instances: 3, threads: 1, graphs: false}]"
    )
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(path))
    for name in ("HTTP_PORT", "GRPC_PORT", "INSTANCES", "THREADS"):
        monkeypatch.setenv(f"FUSEWIRE_{name}", "2")
    found = configured(monkeypatch, capsys, "--http-port=3", "--threads=3")
    ports = ("http_port", "grpc_port", "metrics_port", "openai_port")
    assert [found[name] for name in ports] == [3, 2, 1, None]
    (model,) = found["models"]
    expected = {"source": "a", "device": "cpu", "instances": 2, "threads": 3, "graphs": False}
    assert model == expected
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(found))
    assert configured(monkeypatch, capsys, f"--config={tmp_path}/again.yaml") == found | {
        "http_port": 2,  # the variables are still set
        "models": [expected | {"threads": 2}],
    }


def test_models_on_the_command_line_replace_those_of_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "fusewire.yaml").write_text("models: [{source: a}]")
    found = configured(monkeypatch, capsys, "b", f"--config={tmp_path}/fusewire.yaml")
    assert found["models"] == [{"source": "b"}]
    assert configured(monkeypatch, capsys)["models"] == [{"source": "model_repository"}]


def test_flags_behind_two_dashes_are_tritonservers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = configured(monkeypatch, capsys, "a", "--", "--rate-limit", "off", "--id=x")
    assert found["tritonserver_args"] == ["--rate-limit", "off", "--id=x"]
    assert found["models"] == [{"source": "a"}]


def test_a_key_of_the_environment_is_neither_printed_nor_handed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "a-key-of-sixteen-letters"
    monkeypatch.setenv("FUSEWIRE_CONTROL_KEY", key)
    assert run(monkeypatch, "serve", "--print-config") == 0
    text = capsys.readouterr().out
    assert key not in text
    assert "# control_key is set" in text


def test_a_misspelt_variable_keeps_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONTROL_KEI", "a-key-of-sixteen-letters")
    assert run(monkeypatch, "serve", "/tmp") == 2
    text = capsys.readouterr().err
    assert "did you mean FUSEWIRE_CONTROL_KEY?" in text
    assert "sixteen" not in text


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
    monkeypatch.setattr(server, "collect_apart", sources.collect)  # in this process
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
        (["serve", "/tmp", "--watch-interval-s=0"], "watch_interval_s: got 0.0,"),
        (["serve", "/tmp", "--device=gpu"], "device: got 'gpu'"),
        (["import", "/tmp", "--device=cuda:0,0"], "device: got 'cuda:0,0'"),
        (["serve", "/tmp", "--config=/nowhere"], "config: got /nowhere"),
        (["serve", "/tmp", "--", "--http-port=1"], "use --http-port before the --"),
        (["check", "/nowhere"], f"/nowhere: {NO_FOLDER_NO_ID}"),
        (["check", "/nowhere", "--device=auto"], "no such folder"),
        (["check", "/nowhere", "--device=cuda:0,1"], "device: got 'cuda:0,1', wanted one of auto"),
        (["ask", "sing", "la"], "task: got 'sing'"),
        (["ask", "answer", "Who?"], "wanted one each"),
        (["ask", "rerank", "Who?"], "got a query alone, wanted documents too"),
        (
            ["ask", "rerank", "Who?", "Ada.", "--second=x"],
            "second: got a text, wanted none for rer",
        ),
        (["ask", "chat", "Who?", "--second=x"], "second: got a text, wanted none for chat"),
        (["ask", "embed", "x", "--parameter", "truncate"], "wanted KEY=VALUE"),
        (["ask", "generate", "x", "--parameter", "stream=true"], "got stream, wanted one of"),
        (["ask", "generate", "x", "--parameter", "prompt=y"], "got multiple values for"),
        (["ask", "embed", "x", "--parameter", "texts=y"], "got multiple values for"),
        (["ask", "generate", "x", "--model=m", "--parameter", "timeout_s=y"], "timeout_s: got 'y'"),
        (["ask", "generate", "x", "--images"], "images: got them for generate"),
        (["ask", "embed", "x", "--address=localhost"], "wanted HOST:PORT alone"),
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


def test_with_json_logs_the_error_is_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "serve", "/nowhere", "--log-format=json") == 2
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("error", "fusewire.serve")
    assert "/nowhere" in line["message"]


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
    assert run(monkeypatch, "models", columns=80) == 0  # as of a terminal, or a pipe
    text = capsys.readouterr().out
    assert run(monkeypatch, "models", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    names = [*ARCHITECTURES, *SEQ2SEQ_ENCODERS, *SPEECH, *DECODERS, *IMAGE_ENCODERS]
    assert [row["model_type"] for row in rows] == names
    assert all(name in text for name in names)
    assert all(row["classes"].replace("*", "…") in text for row in rows)
    assert {tuple(row["tasks"]) for row in rows if row["model_type"] in DECODERS} == {("generate",)}


def test_doctor_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    assert run(monkeypatch, "doctor", "--json", *ports) == 0
    findings = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"kernels", "GPUs", "tritonserver", "shared memory", "environment"} <= findings.keys()
    assert "openai-port" not in findings
    assert {"kernels", "GPUs", "tritonserver", "shared memory", "Hugging Face"} <= findings.keys()
    assert run(monkeypatch, "doctor", *ports, "--tritonserver=/nowhere") == 1
    assert "correct the path" in capsys.readouterr().out
    monkeypatch.setenv("FUSEWIRE_OPENAI_PORT", "0")
    monkeypatch.setenv("FUSEWIRE_OPENAI_PROT", "0")
    assert run(monkeypatch, "doctor", *ports) == 1
    text = capsys.readouterr().out
    assert "any free port of 127.0.0.1" in text
    assert "did you mean FUSEWIRE_OPENAI_PORT?" in text


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


def test_check_states_quality_on_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path)
    (tmp_path / "texts").write_text("Water boils.\nIce melts.\n")
    texts = f"--texts={tmp_path / 'texts'}"
    assert run(monkeypatch, "check", folder, texts, "--max-perplexity-ratio=1.001") == 0
    words = capsys.readouterr().out
    assert "GPT2LMHeadModel, task generate: 2 sequences, 22 tokens, float32 against" in words
    assert re.search(r"KL divergence: [-0-9.e]+ nats a token\n", words)
    assert re.search(r"perplexity: [0-9.]+, of transformers [0-9.]+, ratio 1\.00000", words)
    assert "as good as asked for" in words
    assert run(monkeypatch, "check", folder, texts, "--max-perplexity-ratio=0.999", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert found["perplexity_ratio"] == pytest.approx(1, abs=1e-5)
    assert found["differences"]["logits"].keys() == {
        "largest",
        "mean",
        "mean_cosine",
        "least_cosine",
    }
    assert run(monkeypatch, "check", folder, texts, "--against=fp32", "--min-cosine=1.1") == 2
    assert "Invalid value for '--min-cosine'" in capsys.readouterr().err
    assert run(monkeypatch, "check", folder, texts, "--against=fp32") == 0
    assert "measured, as no bound was given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--dtype=int8", "Invalid value for '--dtype': 'int8' is not one of 'auto', 'float32', "),
        ("--quantize=x", "Invalid value for '--quantize': 'x' is not one of 'none', 'int8', "),
    ],
)
def test_a_word_that_a_flag_does_not_take_is_told_with_those_that_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, words: str
) -> None:
    assert run(monkeypatch, "serve", "folder", flag) == 2
    assert words in capsys.readouterr().err


def test_check_states_quality_on_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_checkpoint(tmp_path, "bert")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("Paris is the capital,A capital,4\nWater boils,Ice melts,1.5\nHe,She,0\n")
    assert run(monkeypatch, "check", tmp_path, f"--pairs={pairs}", "--max-spearman-loss=0") == 0
    words = capsys.readouterr().out
    assert re.search(r"Spearman with the scores: (-?[0-9.]+), of transformers \1, loss 0\.0", words)
    pairs.write_text("Paris is the capital,A capital,4\nWater boils,Ice melts\n")
    assert run(monkeypatch, "check", tmp_path, f"--pairs={pairs}") == 2
    assert "fusewire: pairs.csv line 2: got 2 columns, wanted 3" in capsys.readouterr().err


def test_request_parameters_keep_their_types() -> None:
    assert read_parameters(["truncate=true", "top_k=3", "pooling=cls", "x=1.5"]) == {
        "truncate": True,
        "top_k": 3,
        "pooling": "cls",
        "x": 1.5,
    }
    assert read_parameters(["version=1"]) == {"version": "1"}
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        read_parameters(["=3"])


def test_one_text_is_streamed_and_several_are_not() -> None:
    assert streams("generate", {"n": 1})
    assert streams("translate", {})
    assert not streams("generate", {"n": 2})
    assert not streams("translate", {"num_return_sequences": 2})
    assert not streams("embed", {})


def test_doctor_measures_what_a_model_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_checkpoint(tmp_path, "bert", "embed")
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, "doctor", "--costs", str(tmp_path), "--device=cpu") == 0
    text = capsys.readouterr().out
    assert "large enough to be efficient" in text
    assert max(line.count("#") for line in text.splitlines()) == 40
    assert run(monkeypatch, "doctor", "--costs", str(tmp_path), "--device=cpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu"
    assert [point["tokens"] for point in found["points"]][:3] == [16, 32, 64]
    seconds = [point["seconds"] for point in found["points"]]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_doctor_measures_no_model_that_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'
    )
    assert run(monkeypatch, "doctor", "--costs", str(tmp_path)) == 2
    assert "got a folder for generate" in capsys.readouterr().err
