"""The benchmark of translation with beams, without a GPU: what it counts, and its sides on the
CPU."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
import transformers

from benchmarks.gpu import (
    goals,
    seq2seq,
    seq2seq_models,
    seq2seq_torch,
    seq2seq_workload,
    tables,
)
from benchmarks.gpu.generation_models import Place
from benchmarks.gpu.seq2seq_workload import SHAPES, Case, Shape, cases
from tests.benchmarks.gpu.test_tables import WHERE

CPU = Place("cpu", "float32")
TINY = {
    "base": Shape("Tiny Marian", "marian", 32, 2, 4, 64, 300),
    "bart-base": Shape("Tiny BART", "bart", 32, 2, 4, 64, 300),
    "t5-base": Shape("Tiny T5", "t5", 32, 2, 4, 64, 300),
}
FACTS: dict[str, Any] = WHERE | {"matmul_tflops": 0.1, "copy_tb_s": 0.01}


def options(**changed: Any) -> argparse.Namespace:
    usual = {"seq2seq_models": [], "batches": [], "lengths": [], "beams": []}
    return argparse.Namespace(**usual | {"without_rivals": False} | changed)


@pytest.mark.parametrize("model", SHAPES)
def test_a_step_reads_the_matrices_of_the_decoder(model: str) -> None:
    shape = SHAPES[model]
    configuration, model_class = seq2seq_models._CLASSES[shape.family]
    with torch.device("meta"):
        found = model_class(configuration(**shape.config))
    decoder = found.get_decoder()
    matrices = [
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    keys_values = 2 * shape.layers * shape.hidden**2  # of sources: made once, not by steps
    head = found.get_output_embeddings().weight.numel()
    assert shape.step_weights == sum(matrices) - keys_values + head


def test_the_floors_are_those_of_the_published_arithmetic() -> None:
    measured = {"copy_tb_s": 4.24, "matmul_tflops": 761.0}

    def floor(model: str, batch: int, new: int) -> float:
        return Case(model, batch, 4, new, new).floor_ms(SHAPES[model], measured)

    assert floor("big", 32, 32) == pytest.approx(0.079, rel=0.02)
    assert floor("big", 128, 64) == pytest.approx(0.216, rel=0.02)
    assert floor("base", 128, 32) == pytest.approx(0.070, rel=0.02)


def test_cases_are_those_that_were_asked_for() -> None:
    assert [case.batch for case in cases(["base"], [1, 8], [32], [4])] == [1, 8]
    assert {case.beams for case in cases(["bart-base"], [], [], [])} == {1, 4, 32}


@pytest.mark.parametrize("model", TINY)
def test_it_measures_both_sides(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [Case(model, 3, 4, 20, 18), Case(model, 2, 1, 20, 18)]
    monkeypatch.setattr(seq2seq, "SHAPES", TINY)
    monkeypatch.setattr(seq2seq_workload, "CASES", few)
    found = list(seq2seq.run(options(seq2seq_models=[model]), FACTS, CPU))
    assert [rows[0]["case"] for rows in found] == [case.name for case in few]
    for (own, rival), case in zip(found, few, strict=True):
        assert (own["system"], rival["system"]) == ("fusewire", "transformers")
        assert min(own["step_ms"], own["device_ms"], own["beam_share"]) > 0
        assert own["page_copies"] > 0 or case.beams == 1
        assert ("torch_step_ms" in own) == (model != "t5-base")
        assert {"schedule", "pack", "launch", "device_wait"} <= set(own["host_us"])
        assert own["tokens_per_s"] == pytest.approx(case.batch * 18 / own["seconds"], rel=0.01)
    flat = [row | {"time": "2026-11-23"} for rows in found for row in rows]
    assert "[tokens_per_s]: fusewire" in tables.line(found[0])
    assert "Tiny" in tables.TABLES["seq2seq_gpu"](flat)
    assert goals._OF_BENCHMARK["seq2seq_gpu"](flat[0]) is not None


def test_torch_finds_the_best_of_all_beams_of_a_source() -> None:
    logits, scores = torch.randn(3 * 4, 50), torch.randn(3 * 4)
    best, tokens, rows = seq2seq_torch.best_of(logits, scores, beams=4)
    totals = (logits.log_softmax(-1) + scores[:, None]).reshape(3, 200)
    wanted, places = totals.topk(8)
    torch.testing.assert_close(best, wanted)
    assert torch.equal(tokens, places % 50)
    assert torch.equal(rows, places // 50 + 4 * torch.arange(3)[:, None])


def test_a_step_in_torch_that_is_off_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seq2seq, "SHAPES", TINY)
    monkeypatch.setattr(seq2seq_workload, "CASES", [Case("base", 1, 2, 8, 8)])
    qkv_of = seq2seq_torch.qkv_of
    monkeypatch.setattr(seq2seq_torch, "qkv_of", lambda x, w, heads: qkv_of(x.flip(-1), w, heads))
    with pytest.raises(RuntimeError, match=r"torch, compiled, graph: Tiny Marian .* off by"):
        list(seq2seq.run(options(seq2seq_models=["base"]), FACTS, CPU))


def test_a_model_that_is_off_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seq2seq, "SHAPES", TINY)
    monkeypatch.setattr(seq2seq_workload, "CASES", [Case("base", 1, 2, 8, 8)])
    right = seq2seq_models.log_probs
    monkeypatch.setattr(
        seq2seq_models,
        "log_probs",
        lambda model, source, target: right(model, source[::-1], target),
    )
    (rows,) = seq2seq.run(options(seq2seq_models=["base"]), FACTS, CPU)
    assert rows[0]["max_abs_difference"] > rows[0]["allowed_difference"]
    assert "device_ms" not in rows[0]
    assert "WRONG by" in tables.line(rows)
    (goal,) = goals._OF_BENCHMARK["seq2seq_gpu"](rows[0])
    assert not goal.reached
    transformers.logging.set_verbosity_warning()
