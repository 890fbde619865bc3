"""The GPU benchmarks' tables, on rows made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.gpu import goals, tables
from benchmarks.gpu.workload import EET, GRID, LIGHTSEQ, SIZES

WHERE = {
    "gpu": "a GPU",
    "driver": "1.2.3",
    "cuda": "13.0",
    "matmul_tflops": 761.0,
    "copy_tb_s": 4.24,
    "time": "2026-01-02T03:04:05Z",
    "versions": {"torch": "2.0"},
}


KERNEL: dict[str, Any] = {"benchmark": "kernels", "case": "softmax", "shape": [32768, 1024]}
KERNEL |= {"tb_s": 3.6, "share_of_copy": 0.85, "system": "fusewire"}
ATTENTION: dict[str, Any] = {"benchmark": "attention", "case": "12x64 32 full"}
ATTENTION |= {"times_best_rival": 0.9, "best_rival": "cuDNN", "tflops": 10.0, "system": "fusewire"}
MEMORY: dict[str, Any] = {"benchmark": "memory", "case": "BERT-base served", "system": "fusewire"}
MEMORY |= {"allowed_mib": 240.0, "beyond_context_mib": 230.0}
SERVED: dict[str, Any] = {"benchmark": "served", "case": "ids, 1 x 4", "form": "ids"}
SERVED |= {"model": "BERT-base", "system": "fusewire", "sequences": 64, "lengths": [25, 128]}
SERVED |= {"instances": 1, "under_way": 4}
SERVED |= {"engine_tokens_per_s": 1e6, "served_tokens_per_s": 9e5, "served_over_engine": 0.9}
SERVED_GOAL = "served ids (instances: 1, under way: 4), of the engine's tokens/s"
SERVED |= {"queue_ms": 1.5, "tokenize_share": 0.04, "compute_share": 0.8}


def encoder_row(system: str, ms: float, **changes: Any) -> dict[str, Any]:
    row = {"benchmark": "encoder", "model": "BERT-base", "case": "16x512", "grids": ["grid"]}
    speed = {"device_ms": ms, "times_strongest_rival": 1.4, "share_of_matmul": 0.72, "tokens": 4939}
    who = {"system": system, "wall_ms": ms + 0.1, "strongest_rival": "packed"}
    return WHERE | row | speed | who | changes


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.jsonl"
    records.append(path, [encoder_row("fusewire", 1.6), encoder_row("packed, graph", 2.24)])
    return path


def test_an_encoder_stands_beside_its_rivals(results: Path) -> None:
    found = tables.markdown(results)
    assert "| BERT-base 16x512 (4939) | 1.600 | 2.240 | 1.40 | 72% | 1.700 |" in found
    assert "2026-01-02, a GPU, driver 1.2.3, CUDA 13.0; matmul 761 TFLOP/s" in found


def test_cases_are_listed_by_size(results: Path) -> None:
    records.append(results, [encoder_row("fusewire", 0.2, case="1x32", tokens=32)])
    found = tables.markdown(results)
    assert found.index("BERT-base 1x32 (32)") < found.index("BERT-base 16x512 (4939)")


def test_served_stands_beside_the_engine(results: Path) -> None:
    records.append(results, [WHERE | SERVED])
    found = tables.markdown(results)
    assert "| ids | 1 | 4 | 1000000 | 900000 | 90% | 1.50 | 4% | 80% |" in found
    assert tables.line([SERVED]) == "BERT-base ids, 1 x 4 [served_over_engine]: fusewire 0.9"


def test_served_generation_stands_beside_its_engine(results: Path) -> None:
    row: dict[str, Any] = {"benchmark": "generation_served", "system": "fusewire", "model": "GPT"}
    row |= {"prompt": 128, "tokens": 64, "engine_between_ms": 4.0, "server_between_ms": 4.25}
    row |= {"added_between_ms": 0.25, "engine_tokens_per_s": 8e3, "server_tokens_per_s": 6e3}
    endpoint = {"endpoint_between_ms": 4.5, "endpoint_tokens_per_s": 7.6e3}
    where = {key: WHERE[key] for key in WHERE if key not in ("matmul_tflops", "copy_tb_s")}
    rows = [where | row | {"case": "1 stream", "streams": 1}]
    rows.append(where | row | endpoint | {"case": "64 streams", "streams": 64})
    records.append(results, rows)
    found = tables.markdown(results)
    assert "128 + 64 tokens a stream" in found
    assert "| GPT, 1 stream | 4.00 | 4.25 |  | 8000 | 6000 | 75% |  |  |" in found
    assert "| GPT, 64 streams | 4.00 | 4.25 | 4.50 | 8000 | 6000 | 75% | 7600 | 95% |" in found
    verdicts = {goal.what: goal.reached for goal in goals.goals(results)}
    assert verdicts["GPT served, 1 stream, ms added between tokens"]
    assert not verdicts["GPT served, 64 streams, gRPC, of the engine's tokens/s"]
    assert verdicts["GPT served, 64 streams, OpenAI endpoint, of the engine's tokens/s"]


def test_one_that_was_wrong_has_no_time(results: Path) -> None:
    wrong = encoder_row("fusewire", 1.0, max_abs_difference=9.0, allowed_difference=0.1)
    del wrong["device_ms"], wrong["wall_ms"], wrong["share_of_matmul"]
    del wrong["times_strongest_rival"]
    assert tables.line([wrong, encoder_row("packed, graph", 2.0)]).endswith(
        "[device_ms]: fusewire WRONG by 9.0, allowed 0.1, packed, graph 2.0"
    )
    records.append(results, [wrong | {"time": "2026-01-03T00:00:00Z"}])
    assert "| BERT-base 16x512 (4939) |  |  |  |  |" in tables.markdown(results)


def test_the_newest_run_of_a_case_on_the_last_gpu_counts(results: Path) -> None:
    records.append(results, [encoder_row("fusewire", 1.0, gpu="another")])
    assert [row["gpu"] for row in records.latest(results, gpu=True)["encoder"]] == ["another"]
    later = {"time": "2026-01-03T00:00:00Z"}
    records.append(
        results, [encoder_row("fusewire", 1.5, **later), encoder_row("other", 2.0, case="1x32")]
    )
    assert {row["device_ms"] for row in records.latest(results, gpu=True)["encoder"]} == {1.5, 2.0}


def test_no_results_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run python -m benchmarks\.gpu"):
        tables.markdown(tmp_path / "gpu.jsonl")


def test_the_grids_are_those_of_the_published_benchmarks() -> None:
    sums = [sum(case.lengths()) for case in GRID[:9]]
    assert sums == [32, 128, 512, 613, 1232, 2471, 4939, 9880, 19902]
    assert {case.sequences for case in LIGHTSEQ} == {1, 8, 32}
    assert all(len(set(case.lengths())) == 1 for case in (*LIGHTSEQ, *EET))


def test_flops_count_real_tokens_only() -> None:
    # 170 MFLOP a token in the products, and 4 n^2 hidden a sequence and layer in attention
    size = SIZES["base"]
    assert size.flops([1]) == 12 * (24 * 768**2 + 4 * 768)
    assert size.flops([3, 4]) == size.flops([3]) + size.flops([4])


def test_goals_stand_beside_what_was_measured(results: Path) -> None:
    slower = {"case": "ids, 2 x 4", "served_tokens_per_s": 8e5, "served_over_engine": 0.8}
    texts = {"case": "texts, 1 x 4", "form": "texts", "served_tokens_per_s": 9.5e5}
    served = (SERVED, SERVED | slower, SERVED | texts)
    records.append(results, [WHERE | row for row in (KERNEL, ATTENTION, MEMORY, *served)])
    found = {goal.what: (goal.wanted, goal.measured, goal.reached) for goal in goals.goals(results)}
    assert found == {
        "BERT-base 16x512, times the strongest rival (packed)": (">= 1.30", "1.40", True),
        "BERT-base 16x512, of the matmul rate": (">= 72.0%", "72.0%", True),
        "softmax, of the copy bandwidth": (">= 90.0%", "85.0%", False),
        "attention 12x64 32 full, times the best rival (cuDNN)": (">= 1.00", "0.90", False),
        "device memory beyond the context and the kernels' code, MiB": ("<= 240", "230", True),
        SERVED_GOAL: (">= 85.0%", "90.0%", True),
    }
