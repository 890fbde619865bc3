"""The benchmark of generation, without a GPU: what it counts, and its own side on the CPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import records
from benchmarks.gpu import (
    __main__,
    generation,
    generation_answers,
    generation_bench,
    generation_workload,
    goals,
    tables,
)
from benchmarks.gpu import generation_torch as rival
from benchmarks.gpu.generation_models import Past, Place, random_ids, transformers_model
from benchmarks.gpu.generation_workload import SHAPES, Case, Shape, cases
from benchmarks.gpu.timing import medians_ms
from benchmarks.records import Rows
from tests.benchmarks.gpu.test_tables import WHERE
from tests.tolerance import MODEL_FP32

CPU = Place("cpu", "float32")
TINY = {
    "tiny-llama": Shape("Tiny Llama", "llama", 48, 2, 4, 2, 56, 300, 128),
    "tiny-gpt": Shape("Tiny GPT", "gpt2", 48, 2, 4, 4, 192, 300, 128),
}
FACTS: dict[str, Any] = WHERE | {"matmul_tflops": 0.1, "copy_tb_s": 0.01}


@pytest.mark.parametrize("model", SHAPES)
def test_a_step_reads_every_weight_but_the_embeddings(model: str) -> None:
    shape = SHAPES[model]
    found = _on_meta(shape)
    total = sum(parameter.numel() for parameter in found.parameters())
    tables = found.transformer.wpe if shape.model_type == "gpt2" else found.get_input_embeddings()
    assert shape.step_weights == total - tables.weight.numel()


@pytest.mark.parametrize("model", SHAPES)
def test_a_token_leaves_keys_and_values_of_every_layer(model: str) -> None:
    shape, found = SHAPES[model], _on_meta(SHAPES[model])
    with torch.device("meta"), torch.no_grad():
        cache = found(torch.zeros(1, 3, dtype=torch.int64), use_cache=True).past_key_values
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert 3 * shape.kv_numbers_per_token == numbers
    for kv_bytes in (1, 2):
        kv = 35 * kv_bytes * shape.kv_numbers_per_token
        assert shape.step_bytes(5, 7, kv_bytes) == 2 * shape.step_weights + kv


@pytest.mark.parametrize("model", TINY)
def test_a_prompts_flops_are_those_of_its_products(model: str) -> None:
    shape, lengths = TINY[model], [20, 7]
    module = transformers_model(shape, CPU)
    module.set_attn_implementation("eager")  # whose products are the whole square
    counted = 0
    for length in lengths:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.zeros(1, length, dtype=torch.int64), use_cache=False, logits_to_keep=1)
        # Less what is above the diagonal, and angles, which are a product in some versions.
        above = shape.layers * 4 * shape.hidden * (length * (length - 1) // 2)
        angles = counter.get_flop_counts().get("LlamaForCausalLM.model.rotary_emb", {})
        counted += counter.get_total_flops() - above - sum(angles.values())
    assert shape.prompt_flops(lengths) == counted


def test_an_8b_step_reads_fifteen_gigabytes() -> None:
    assert SHAPES["llama-8b"].step_bytes(1, 1024) == pytest.approx(15.14e9, rel=1e-3)
    assert Case("llama-8b", 64, 1024).kv_bytes == 8 << 30


def test_cases_are_those_that_were_asked_for() -> None:
    assert [case.name for case in cases("step", ["llama-8b"], [])] == [
        "1 x 1024",
        "16 x 1024",
        "64 x 1024",
        "64 x 192",
        "256 x 192",
    ]
    assert {case.context for case in cases("context", [], [16])} == {1024 << at for at in range(6)}
    assert cases("prompt", ["gpt2"], []) == []


def test_the_command_line_picks_parts_models_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "gpu generation --parts step context --models llama-8b --batches 1 16"
    monkeypatch.setattr(sys, "argv", line.split())
    options = __main__.arguments()
    assert (options.parts, options.models) == (["step", "context"], ["llama-8b"])
    assert options.batches == [1, 16]


@pytest.mark.parametrize("model", TINY)
def test_the_hand_written_torch_is_transformers(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = TINY[model]
    monkeypatch.setitem(SHAPES, model, shape)
    found = transformers_model(shape, CPU)
    weights, past = rival.Weights.of(found), Past(Case(model, 2, 32), CPU)
    ids = torch.tensor(random_ids(shape, 64, 0)).view(2, 32)
    with torch.no_grad():
        wanted = found(ids).logits[:, -1]
        plain = rival.plain_logits(weights, past, ids, torch.float32)
        parts = rival.before, rival.after, rival.logits_of
        graph = rival.Graph(weights, past, ids, parts, CPU)
        graph.forward()
    assert (plain - wanted).abs().max() < MODEL_FP32
    assert (graph.output() - wanted).abs().max() < MODEL_FP32


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every part in tiny, and a clock that is not waited for."""
    llama, gpt = TINY
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)
    parts = {
        "step": [Case(llama, 3, 48), Case(gpt, 2, 32)],
        "prompt": [Case(llama, 4, 48)],
        "eet": [Case(gpt, 2, 24)],
        "context": [Case(llama, 1, 32), Case(llama, 1, 64)],
    }
    monkeypatch.setattr(generation_workload, "PARTS", parts)
    monkeypatch.setattr(generation_answers, "EET_TOTAL", 24)
    monkeypatch.setattr(generation_answers, "EET_PROMPTS", (8, 16))
    monkeypatch.setattr(generation_answers, "RUNS", 1)
    monkeypatch.setattr(generation, "WALL_TOKENS", 16)
    monkeypatch.setattr(generation, "CHUNK_TOKENS", 96)
    monkeypatch.setattr(generation_bench, "medians_ms", partial(medians_ms, rounds=1, turn_ms=1.0))
    monkeypatch.setattr(generation_bench, "ULPS", 64)  # the reference is no more precise than we
    with torch.no_grad():
        yield


@pytest.mark.usefixtures("tiny")
def test_a_model_is_built_once_for_all_its_parts_and_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, asked = [], []

    def build(model: str, place: Place) -> Any:
        built.append(model)
        return SimpleNamespace(forget=lambda: None)

    def part(bench: Any, of_part: list[Case], *rest: Any) -> Iterator[Rows]:
        asked.extend(of_part)
        return iter(())

    monkeypatch.setattr(generation, "Bench", build)
    monkeypatch.setattr(generation, "PARTS", dict.fromkeys(generation_workload.PARTS, part))
    options = argparse.Namespace(parts=["step", "context"], models=["tiny-llama"], batches=[])
    assert [*generation.run(options, FACTS, CPU)] == []
    assert [case.name for case in asked] == ["3 x 48", "1 x 32", "1 x 64"]
    assert built == ["tiny-llama"]


@pytest.mark.sweep
@pytest.mark.usefixtures("tiny")
def test_every_part_leaves_rows_tables_and_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = argparse.Namespace(
        parts=["step", "prompt", "eet", "context"],
        models=[],
        batches=[],
        no_compiled_transformers=False,
    )
    out = tmp_path / "gpu.jsonl"
    for rows in generation.run(options, FACTS, CPU):
        records.append(out, rows)
        assert "WRONG" not in tables.line(rows)
    found = records.latest(out, gpu=True)["generation"]
    systems = {part: _systems(found, part) for part in options.parts}
    torch_graph, static = "torch, compiled, graph", "transformers, compiled"
    assert systems == {
        "step": {"fusewire", torch_graph, static},
        "prompt": {
            "fusewire",
            "fusewire, 96 tokens a step",
            torch_graph,
            "transformers",
        },
        "eet": {"fusewire", static},
        "context": {"fusewire", torch_graph},
    }
    own = [row for row in found if row["system"] == "fusewire"]
    assert all(row["wall_ms"] > 0 < row["with_host_ms"] for row in own if row["part"] == "step")
    # In fp32 both are greedy alike to the end.
    assert {row["same_tokens"] for row in found if row["part"] == "eet"} == {1.0}
    text = tables.markdown(out)
    for part in (
        "| Tiny Llama 3 x 48 |",
        "| Tiny GPT 2 x 24, prompt 16 |",
        "| Tiny Llama 4 x 48 |",
    ):
        assert part in text
    monkeypatch.setattr(goals, "STEP_MS", {("Tiny Llama", 3): 1e9, ("Tiny GPT", 2): 1e9})
    whats = [goal.what for goal in goals.goals(out)]
    assert "Tiny Llama step 3 x 48, device ms" in whats
    assert "Tiny Llama prompt 4 x 48, of the matmul rate" in whats
    assert "Tiny Llama context 1 x 64, times the step at 32, as the bytes grow" in whats


def _systems(rows: Rows, part: str) -> set[str]:
    return {row["system"] for row in rows if row["part"] == part}


@cache
def _on_meta(shape: Shape) -> Any:
    config = transformers.AutoConfig.for_model(shape.model_type, **shape.config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)
