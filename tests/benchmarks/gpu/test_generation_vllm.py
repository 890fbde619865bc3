"""The comparison with vLLM, without it or a GPU: what is timed, our side on the CPU, the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from benchmarks import records
from benchmarks.gpu import beside_vllm, beside_vllm_own, generation_vllm, tables, vllm_process
from benchmarks.gpu.beside_vllm import Case, Prompts, Timing
from benchmarks.gpu.beside_vllm_theirs import write_config
from benchmarks.gpu.generation_models import Place
from benchmarks.gpu.generation_workload import SHAPES, Shape

CPU = Place("cpu", "float32")
TINY = Shape("Tiny GPT", "gpt2", 48, 2, 4, 4, 192, 300, 192)
# Only its interface; answers at once.
FAKE_VLLM = """
from types import SimpleNamespace

import torch


class SamplingParams:
    def __init__(self, *, temperature, ignore_eos, max_tokens, detokenize):
        assert (temperature, ignore_eos, detokenize) == (0, True, False)
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, folder, *, load_format, skip_tokenizer_init, dtype, enable_prefix_caching,
                 gpu_memory_utilization, max_model_len):
        assert (load_format, dtype, max_model_len) == ("dummy", "float16", 512 + 128)
        assert skip_tokenizer_init and not enable_prefix_caching
        self.model = torch.nn.Linear(64, 64)

    def apply_model(self, function):
        function(self.model)

    def generate(self, prompts, sampling, *, use_tqdm):
        assert abs(self.model.weight.std() - 0.02) < 0.002  # not vLLM's dummy weights
        assert all(0 <= each < 50257 for prompt in prompts for each in prompt["prompt_token_ids"])
        output = SimpleNamespace(token_ids=[0] * sampling.max_tokens)
        return [SimpleNamespace(outputs=[output]) for _ in prompts]
"""
FACTS = {"gpu": "a GPU", "driver": "1.2.3", "cuda": "13.0", "time": "2026-01-02T03:04:05Z"}


def test_a_step_leaves_prompts_and_first_tokens_out() -> None:
    row = Timing(few_s=1.0, whole_s=1.6).row(Case(4, 100))
    assert row["step_ms"] == 5.0  # 0.6 s over 128 - 8 tokens
    assert row["tokens_per_s"] == 4 * 128 / 1.6
    assert row["first_8_ms"] == 1000.0
    assert (row["case"], row["sequences"], row["prompt"]) == ("4 x 100", 4, 100)


def test_the_fastest_runs_count_and_the_first_warms_up() -> None:
    seconds = iter([90.0, 3.0, 2.0, 7.0, 8.0])
    seen: list[tuple[Prompts, int]] = []

    def generate(prompts: Prompts, new_tokens: int) -> float:
        seen.append((prompts, new_tokens))
        return next(seconds)

    found = beside_vllm.timing(Case(2, 5), 100, generate)
    assert found == Timing(few_s=2.0, whole_s=7.0)
    assert [new for _, new in seen] == [8, 8, 8, 128, 128]
    assert all([len(prompt) for prompt in prompts] == [5, 5] for prompts, _ in seen)
    assert len({str(prompts) for prompts, _ in seen}) == 5  # nothing is found in a cache


def test_the_cases_fit_the_models() -> None:
    for model, cases in beside_vllm.CASES.items():
        assert beside_vllm.longest(cases) <= SHAPES[model].positions


def test_our_side_writes_a_row_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    out = tmp_path / "rows.jsonl"
    beside_vllm_own.measure("tiny", [Case(1, 8), Case(3, 4)], out, CPU)
    rows = records.read(out)
    assert [row["case"] for row in rows] == ["1 x 8", "3 x 4"]
    assert all(row["step_ms"] > 0 < row["tokens_per_s"] for row in rows)
    assert set(rows[0]["versions"]) == {"fusewire", "torch"}


@pytest.mark.parametrize("model", beside_vllm.CASES)
def test_vllm_gets_the_shape_that_ours_has(model: str, tmp_path: Path) -> None:
    write_config(tmp_path, SHAPES[model])
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())
    assert found["architectures"] in (["GPT2LMHeadModel"], ["LlamaForCausalLM"])
    shape = SHAPES[model]
    assert (config.hidden_size, config.num_hidden_layers) == (shape.hidden, shape.layers)
    assert config.vocab_size == shape.vocabulary


def test_vllm_is_asked_for_exactly_so_many_greedy_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    about = tmp_path / "vllm-0.24.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    vllm_process.require_vllm(sys.executable)
    rows = generation_vllm.side("vllm", sys.executable, "gpt2", [])
    assert [row["case"] for row in rows] == [case.name for case in beside_vllm.CASES["gpt2"]]
    assert all(row["versions"]["vllm"] == "0.24.0" for row in rows)


def test_without_vllm_the_remedy_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(SystemExit, match=r"pip install vllm==.*--vllm-python"):
        vllm_process.require_vllm(str(bare))


def test_a_side_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generation_vllm.MODULES, "vllm", "benchmarks.gpu.no_such_module")
    with pytest.raises(SystemExit, match="vllm: its process ended with status 1 after 0 of 3"):
        generation_vllm.side("vllm", sys.executable, "gpt2", [])


def test_both_sides_stand_in_one_table(tmp_path: Path) -> None:
    def measured(system: str, few_s: float, whole_s: float) -> dict[str, Any]:
        row = Timing(few_s, whole_s).row(Case(64, 1024))
        versions = {system: "1.0", "torch": "2.0"}
        facts = FACTS | {"benchmark": "generation_vllm", "model": "Llama-3-8B"}
        return vllm_process.named(system, row | {"versions": versions}, facts)

    rows = [measured("fusewire", 1.0, 2.2), measured("vllm", 1.0, 1.9)]
    assert rows[1]["versions"] == {"vllm": "1.0", "torch (vllm)": "2.0"}
    records.append(tmp_path / "gpu.jsonl", rows)
    found = tables.markdown(tmp_path / "gpu.jsonl")
    line = "| Llama-3-8B 64 x 1024 | 10.000 | 7.500 | 0.75 | 3,724 | 4,312 | 0.86 | 1,000 | 1,000 |"
    assert line in found
    assert "2026-01-02, a GPU, driver 1.2.3, CUDA 13.0; vllm 1.0" in found
