"""Formats of weights are measured beside others' only where answers are right, and the table and
the goals are made of rows alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from benchmarks import arena, rivals_int8, tables, weight_formats, weight_formats_decode
from benchmarks.generation_rivals import Run
from benchmarks.gpu import tables as gpu_tables
from benchmarks.weight_formats_report import goals
from tests.tolerance import MODEL_FP32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.BertModel(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("name", [n for n in rivals_int8.SYSTEMS if "ctranslate2" not in n])
def test_a_system_in_fewer_bits_has_nearly_the_answers_of_float32(name: str, folder: Path) -> None:
    if missing := [
        p for p in rivals_int8.PACKAGES.get(name, ()) if not importlib.util.find_spec(p)
    ]:
        pytest.skip(f"{missing[0]} is not installed")
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 300, length) for length in (5, 30, 1, 17)]
    with arena.System(name, folder, 1) as system:
        ours = system.run(sequences)
        first, second = system.first_two(sequences)
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        each = [model(torch.from_numpy(ids[None])).last_hidden_state[0] for ids in sequences]
    exact = torch.cat(each).numpy()
    off = np.abs(ours - exact).max()
    assert weight_formats.cosines(ours, exact).mean() > 0.99
    assert off <= MODEL_FP32 if name == rivals_int8.EXACT else off > MODEL_FP32
    assert min(first, second) > 0


class _Wrong:
    """A system with other answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, sequences: list[np.ndarray]) -> np.ndarray:
        tokens = sum(len(ids) for ids in sequences)
        return np.random.default_rng(0).standard_normal((tokens, 64)).astype(np.float32)


def test_a_rival_with_wrong_answers_is_not_timed_and_ours_end_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    systems: list[Any] = [_Wrong("openvino int8"), _Wrong("fusewire int8")]
    with pytest.raises(SystemExit, match="fusewire int8: got a mean cosine"):
        weight_formats.checked(systems, folder, 1)
    assert "openvino int8: left out, mean cosine" in capsys.readouterr().out


def test_what_is_not_installed_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(rivals_int8.PACKAGES, "openvino int8", ("no_such_package",))
    names = ["fusewire int8", "openvino int8"]
    assert weight_formats.installed(names) == ["fusewire int8"]
    assert "openvino int8: left out, not installed" in capsys.readouterr().out


def test_tokens_count_until_the_first_other_one() -> None:
    exact, other = Run([[1, 2, 3, 4]], []), Run([[1, 2, 9, 4]], [])
    assert weight_formats_decode.same_tokens(other, exact) == 0.5
    weight_formats_decode.check("fusewire int8", other, exact)
    with pytest.raises(SystemExit, match="wanted the same"):
        weight_formats_decode.check("ctranslate2 float32", other, exact)
    with pytest.raises(SystemExit, match="wanted some of the first ones"):
        weight_formats_decode.check("fusewire int8", Run([[7, 2, 3, 4]], []), exact)


def test_the_table_and_goals_are_read_from_rows() -> None:
    facts = {"benchmark": "weight_formats", "threads": 1, "disturbed": 0.0}
    facts |= {"versions": {"numpy": "2"}, "cpu": "a CPU", "time": "2026-11-24T00:00:00Z"}
    bert = facts | {"model": "BERT-base"}
    rows = [
        bert | {"input": given, "system": name, "ms": ms, "mean_cosine": cosine} | first
        for given, first in (("mixed 32", {}), ("1 of a new length", {"first_ms": 8.0}))
        for name, ms, cosine in (
            ("fusewire float32", 4.0, 1.0),
            ("fusewire bfloat16", 2.0, 0.9999),
            ("fusewire int8", 1.0, 0.99),
            ("ctranslate2 int8", 1.5, 0.98),
        )
    ]
    gpt2 = facts | {"model": "GPT-2 124M", "input": "decode 1"}
    rows += [
        gpt2 | {"system": name, "ms": ms, "same_tokens": 0.75}
        for name, ms in (("fusewire float32", 3), ("fusewire int8", 2), ("ctranslate2 int8", 1))
    ]
    table = tables.TABLES["weight_formats"](rows)
    assert "| BERT-base, fusewire int8 | 1.0 | 8.0, then 1.0 |  | 0.9900 |" in table
    assert "| GPT-2 124M, fusewire int8 |  |  | 2.0 | 0.7500 |" in table
    assert {goal.what: (goal.measured, goal.reached) for goal in goals(rows)} == {
        "int8, BERT-base mixed 32, times float32": ("4.00", True),
        "int8, BERT-base mixed 32, times ctranslate2 int8": ("1.50", False),
        "bfloat16, BERT-base mixed 32, times float32": ("2.00", True),
        "int8, GPT-2 124M decode 1, times ctranslate2 int8": ("0.50", False),
    }


def test_the_table_of_a_gpu_has_a_line_per_case_and_our_formats_first() -> None:
    facts = {"versions": {"torch": "2"}, "gpu": "a GPU", "time": "2026-11-24T00:00:00Z"}
    rows = [
        facts | {"model": model, "case": case, "system": name, "ms": ms}
        | {"times_fp16": times, "cosine": 0.99975}
        for model, case, name, ms, times in (
            ("BERT-base", "64x512", "none", 6.0, 1.0),
            ("BERT-base", "64x512", "int8", 5.0, 1.2),
            ("Llama-3-8B", "64 x 4096 x 4096", "none", 0.0119, 1.0),
            ("Llama-3-8B", "64 x 4096 x 4096", "torch compiled", 0.0144, 0.83),
            ("Llama-3-8B", "64 x 4096 x 4096", "fp8", 0.0092, 1.29),
        )
    ]  # fmt: skip
    lines = gpu_tables.TABLES["weight_formats_gpu"](rows).splitlines()
    assert lines[2:6] == [
        "| | fp16 | fp8 | int8 | torch compiled |",
        "|---|---|---|---|---|",
        "| BERT-base, 64x512 | 6.00 |  | 5.00 (1.20, 0.9998) |  |",
        "| Llama-3-8B, 64 x 4096 x 4096 | 0.0119 | 0.0092 (1.29, 0.9998) |  | 0.0144 |",
    ]
