"""Steps of training have the losses of transformers, and goals are read from rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusewire import kernels

from benchmarks import goals, records, tables, training_ddp, training_gpu, training_report
from benchmarks.gpu import tables as gpu_tables
from benchmarks.memory import alone
from benchmarks.training import System, check
from benchmarks.training_gpu_memory import GIB, peak_gib
from benchmarks.training_memory import SYSTEMS, measured
from benchmarks.training_report import DDP, GPU_MEMORY, MEMORY
from benchmarks.training_rivals import batch_of, make, token_mask

TINY = "BERT, tiny"


def test_a_step_is_that_of_transformers() -> None:
    with System("fusewire", TINY, 1) as ours, System("transformers", TINY, 1) as theirs:
        check([ours, theirs], TINY)
        turn = ours.time([batch_of(TINY, 3, np.random.default_rng(0))], 2)
        check([ours, theirs], TINY)  # from the first weights on, again
        assert len(turn.seconds) == len(turn.cpu_s) == 2
        assert min(turn.cpu_s) > 0


def test_other_losses_stop_the_benchmark() -> None:
    def system(name: str, loss: float) -> Any:
        return SimpleNamespace(name=name, losses=lambda batches: [loss] * len(batches))

    with pytest.raises(SystemExit, match="fusewire: got losses"):
        check([system("fusewire", 0.7), system("transformers", 0.6)], TINY)


def test_texts_are_ragged_and_padded() -> None:
    batch = batch_of(TINY, 64, np.random.default_rng(0))
    lengths = batch["attention_mask"].sum(1)
    assert batch["input_ids"].shape == (64, lengths.max())
    assert 8 <= lengths.min() < 30 < lengths.mean() < 60 < lengths.max() <= 128
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_goals_and_tables_are_read_from_rows() -> None:
    facts = {"model": "BERT-base", "case": "8 texts", "tokens": 360, "padded_tokens": 900}
    facts |= {"benchmark": "training", "threads": 2, "versions": {"torch": "2"}, "cpu": "a CPU"}
    facts |= {"cpus": [0, 1], "time": "2026-11-23T00:00:00Z", "disturbed": 0.0}
    times = {"fusewire": 1.0, "transformers": 2.0, "transformers, compiled": 0.9}
    rows = [
        {**facts, "system": name, "median_ms": 100 * ratio, "least_cpu_ms": 190 * ratio}
        | {"times_fusewire": ratio, "cpu_times_fusewire": ratio}
        for name, ratio in times.items()
    ]
    eager, compiled = goals._GOALS["training"](rows)
    assert (eager.measured, eager.reached) == ("2.00", True)
    assert (compiled.measured, compiled.reached) == ("0.90", False)
    table = tables.TABLES["training"](rows)
    assert "| BERT-base, 8 texts | 360, 900 | 100 / 190 | 200 / 380 | 90 / 171 |" in table


@pytest.mark.parametrize("shape", [TINY, "GPT-2, tiny", "Transformer, tiny", "ViT, tiny"])
def test_steps_for_a_gpu_have_the_losses_of_transformers(shape: str) -> None:
    systems = (training_gpu.STEP, training_gpu.OURS, training_gpu.EAGER)
    contenders = {system: training_gpu.stepping(system, shape, "cpu") for system in systems}
    batch = training_gpu.few(shape, 0, "cpu")
    training_gpu.check(contenders, batch)
    assert all(training_gpu.round_ms(step, [batch], "cpu") > 0 for _, step in contenders.values())


def test_a_compiled_translator_gets_one_batch_again_and_again() -> None:
    shape = "Transformer, tiny"
    batches = training_gpu.made(shape, 100, 1, "cpu")
    assert len({batch["labels"].shape for batch in batches}) > 1
    alike = training_gpu.for_compiled(shape, batches)
    assert len(alike) == len(batches)
    assert all(batch is batches[0] for batch in alike)


@pytest.mark.sweep
def test_a_compiled_translator_has_the_losses_of_transformers() -> None:
    shape, batch = "Transformer, tiny", training_gpu.few("Transformer, tiny", 0, "cpu")
    systems = (training_gpu.EAGER, training_gpu.COMPILED)
    training_gpu.check({each: training_gpu.stepping(each, shape, "cpu") for each in systems}, batch)


def test_memory_on_a_gpu_is_a_table_with_a_line_per_case() -> None:
    facts = {"benchmark": GPU_MEMORY, "model": TINY, "case": "9 texts", "tokens": 90}
    facts |= {"padded_tokens": 200, "time": "2026-11-23T00:00:00Z", "gpu": "a GPU", "versions": {}}
    rows = [
        {**facts, "system": "fusewire, Step", "peak_gib": 1.25},
        {**facts, "system": "transformers", "peak_gib": 2.5},
        {**facts, "case": "18 texts", "system": "fusewire, Step", "peak_gib": 2.0},
    ]
    table = gpu_tables.TABLES[GPU_MEMORY](rows)
    assert f"| {TINY}, 9 texts | 90, 200 | 1.25 | 2.50 |" in table
    assert f"| {TINY}, 18 texts | 90, 200 | 2.00 |  |" in table


@pytest.mark.gpu
@pytest.mark.parametrize("system", [training_gpu.STEP, training_gpu.EAGER])
def test_memory_on_a_gpu_has_parameters_gradients_and_moments_in_it(system: str) -> None:
    found = alone(peak_gib, system, "BERT-base", 8)
    parameters = sum(p.numel() for p in make("BERT-base").parameters())
    assert 16 * parameters / GIB < found < 32 * parameters / GIB


def test_batches_of_a_translator_are_by_target_tokens() -> None:
    batch = batch_of("Transformer, tiny", 512, np.random.default_rng(0))
    lengths = token_mask(batch).sum(1)
    assert lengths.sum() == 512
    assert lengths[:-1].min() >= 0.7 * lengths.max()
    assert batch["labels"].shape == (len(lengths), lengths.max())
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


@pytest.mark.sweep
def test_processes_are_compared_with_one_of_them_alone(tmp_path: Path) -> None:
    models = ["BERT, tiny", "Transformer, tiny"]
    options = "--processes", "2", "--texts", "9", "--rounds", "1", "--out", str(tmp_path)
    command = [sys.executable, "-m", "benchmarks.training_ddp", "--device", "cpu", *options]
    done = subprocess.run([*command, "--models", *models], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = records.read(tmp_path / f"{DDP}.jsonl")
    assert [(r["model"], r["system"]) for r in rows] == [
        (model, system) for model in models for system in training_ddp.SYSTEMS
    ]
    for row in rows:
        assert row["processes"] == 2
        assert row["efficiency"] == pytest.approx(
            row["tokens_per_s"] / (2 * row["alone_tokens_per_s"]), abs=2e-3
        )
    for row, efficiency in zip(rows, (0.951, 0.949, 0.951), strict=False):
        row["efficiency"] = efficiency
    goals = training_report.ddp_goals(rows[: len(training_ddp.SYSTEMS)])  # not of the rival
    reached = {"95.1%": True, "94.9%": False}
    found = [(goal.measured, goal.reached) for goal in goals]
    assert found == [(each, reached[each]) for each in ("95.1%", "94.9%", "95.1%")]
    assert f"({rows[3]['efficiency']:.1%}) |" in training_report.ddp_table(rows)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_memory_is_less_the_more_is_computed_again() -> None:
    rows = [
        {"benchmark": MEMORY, "model": TINY, "case": "batch 8", "system": system, "cpu": "a CPU"}
        | {"threads": 2, "dtype": "float32", "time": "2026-11-26", "versions": {}}
        | measured(system, TINY, 8, kernels.num_threads())
        for system in SYSTEMS
    ]
    peaks = [row["peak_mib"] for row in rows]
    planned = [row["planned_mib"] for row in rows if "planned_mib" in row]
    assert planned[0] > planned[1] >= planned[2] > planned[3]
    assert max(peaks[: len(planned)]) < min(peaks[len(planned) :])
    (goal,) = goals._GOALS[MEMORY](rows)
    assert goal.reached
    line = f"| {rows[3]['system']} | {peaks[3]:.1f} | {planned[3]:.1f} |"
    assert line in tables.TABLES[MEMORY](rows)
