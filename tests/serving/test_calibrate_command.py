"""`fusewire import --quantize` on the command line: what it refuses to measure, and --smooth."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fusewire.cli import prepare
from fusewire.cli.calibrate import calibrated
from fusewire.errors import ConfigurationError
from safetensors.numpy import load_file, save_file

from tests.engine.generating import tiny_folder
from tests.reference import tiny_checkpoint
from tests.serving.test_command_line import run


def test_tensorflow_weights_are_sent_to_a_plain_import_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(ConfigurationError, match="import the folder without --quantize, then"):
        calibrated(tmp_path, {"quantize": "int8", "task": "hidden"}, "cpu", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no --quantize, wanted a format to measure; add it"),
        ({"quantize_skip": "lm_head"}, "no --quantize, wanted a format to measure; add it"),
        (
            {"quantize": "int8", "quantize_skip": "lm_head"},
            "--quantize-skip, wanted one of them, as matrices are measured to choose these names",
        ),
    ],
)
def test_texts_are_for_what_is_measured(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^calibrate: got 'texts.txt' and {message}"):
        calibrated(tmp_path, settings, "cpu", Path("texts.txt"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "smooth: got 0.5 and --quantize none, wanted --quantize int8"),
        (["--quantize", "fp8"], "smooth: got 0.5 and --quantize fp8, wanted --quantize int8"),
        (["--quantize", "int8", "--quantize-skip", "lm_head"], "got 0.5 and --quantize-skip"),
        (["--quantize", "int8", "--link"], "smooth: got 0.5 and --link, wanted --copy"),
    ],
)
def test_smooth_is_of_what_is_measured_and_copied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    folder = tiny_folder(tmp_path / "model")
    arguments = "import", folder, "--smooth", 0.5, "--repository", tmp_path / "repository", *flags
    assert run(monkeypatch, *arguments, "--device", "cpu") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "repository").exists()


def test_what_is_written_is_smoothed_and_the_table_has_both_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, repository, texts = tiny_folder(tmp_path / "m"), tmp_path / "r", tmp_path / "texts"
    texts.write_text("Once upon a time\nthere was a fox.\n")
    tensors = load_file(folder / "model.safetensors")
    tensors[name := "transformer.h.0.ln_1.weight"][7] *= 50
    save_file(tensors, folder / "model.safetensors")
    flags = "--quantize", "int8", "--smooth", 0.5, "--calibrate", texts, "--device", "cpu"
    arguments = "import", folder, "--repository", repository, *flags
    assert run(monkeypatch, *arguments) == 0
    printed, warned = capsys.readouterr()
    assert "warning" not in warned
    assert re.search(r"matrix +shape +error before +smoothed +format", printed)
    assert re.search(r"h.0.attn.c_attn +144 x 48 +0\.\d{4} +0\.\d{4} +\w+", printed)
    assert [path.name for path in repository.iterdir()] == ["m"]
    version = repository / "m" / "1"
    before, after = (load_file(each / "model.safetensors") for each in (folder, version))
    ratios = before[name] / after[name]
    assert ratios[7] >= 4 * np.delete(ratios, 7).max()
    np.testing.assert_array_equal(ratios, np.exp2(np.rint(np.log2(ratios))))
    np.testing.assert_array_equal(after["transformer.wte.weight"], before["transformer.wte.weight"])
    assert run(monkeypatch, *arguments, "--replace", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibration"]["error"] < 0.5
    names = [each["name"] for each in found["calibration"]["matrices"]]
    assert names == [each["name"] for each in found["calibration"]["before_smoothing"]["matrices"]]


@pytest.mark.parametrize("as_json", [False, True])
def test_where_smoothing_made_it_worse_that_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    errors = iter((0.01, 0.02))
    monkeypatch.setattr(
        prepare,
        "calibrated",
        lambda *given: replace(calibrated(*given), error=next(errors)),
    )
    (texts := tmp_path / "texts").write_text("Once upon a time\nthere was a fox.\n")
    flags = ["--quantize", "int8", "--smooth", 0.5, "--calibrate", texts, "--device", "cpu"]
    flags += ["--json"] * as_json
    folder = tiny_folder(tmp_path / "model")
    assert run(monkeypatch, "import", folder, "--repository", tmp_path / "repository", *flags) == 0
    assert re.search(
        r"^warning: smooth: got an error of 0.02 with \d+ of 10 matrices left as they are, wanted "
        r"less than without it, 0.01 with \d+; import with --replace and another ALPHA, or without",
        capsys.readouterr().err,
        re.MULTILINE,
    )


@pytest.mark.parametrize("quantize", [[], ["--quantize", "int8"]])
def test_a_matrix_that_there_is_not_is_refused_with_those_there_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quantize: list[str],
) -> None:
    folder, repository = tiny_folder(tmp_path / "model"), tmp_path / "repository"
    arguments = "import", folder, "--repository", repository, "--device", "cpu", *quantize
    assert run(monkeypatch, *arguments, "--quantize-skip", "lm_head,h.0.mlp") == 2
    message = capsys.readouterr().err
    assert "got 'h.0.mlp', wanted names of matrices of the model: wte, h.N.attn.c_attn," in message
    assert not repository.exists()
    assert run(monkeypatch, *arguments, "--quantize-skip", "lm_head,h.0.mlp.c_fc") == 0


def test_an_encoder_is_not_smoothed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_checkpoint(tmp_path / "model", "bert", "embed")
    flags = "--quantize", "int8", "--smooth", 0.5, "--device", "cpu"
    arguments = "import", tmp_path / "model", "--repository", tmp_path / "repository", *flags
    assert run(monkeypatch, *arguments) == 2
    assert "smooth: got a model of the type bert, wanted a decoder" in capsys.readouterr().err
