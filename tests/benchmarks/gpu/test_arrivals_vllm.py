"""Random arrivals beside vLLM, without it or a GPU: both sides on a model made up here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import arrivals, records
from benchmarks.arrivals import Request
from benchmarks.gpu import arrivals_beside_vllm as load
from benchmarks.gpu import (
    arrivals_vllm,
    arrivals_vllm_own,
    arrivals_vllm_table,
    tables,
    vllm_process,
)
from benchmarks.gpu.generation_models import Place
from benchmarks.gpu.generation_workload import SHAPES, Shape

CPU = Place("cpu", "float32")
TINY = Shape("Tiny GPT", "gpt2", 48, 1, 4, 4, 192, 300, 1024)
FACTS = {"gpu": "a GPU", "driver": "1.2.3", "cuda": "13.0", "time": "2026-01-02T03:04:05Z"}
# Only its interface: two requests run at once, with a millisecond for each of their tokens. Its
# tokens come two at a time.
FAKE_VLLM = {
    "vllm/__init__.py": """
class SamplingParams:
    def __init__(self, *, temperature, ignore_eos, max_tokens, detokenize, output_kind):
        assert (temperature, ignore_eos, detokenize, output_kind) == (0, True, False, "delta")
        self.max_tokens = max_tokens
""",
    "vllm/sampling_params.py": """
class RequestOutputKind:
    DELTA = "delta"
""",
    "vllm/engine/arg_utils.py": """
class AsyncEngineArgs:
    def __init__(self, folder, *, load_format, skip_tokenizer_init, dtype):
        assert (load_format, skip_tokenizer_init, dtype) == ("dummy", True, "float16")
""",
    "vllm/usage/usage_lib.py": """
class UsageContext:
    OPENAI_API_SERVER = "server"
""",
    "vllm/v1/engine/async_llm.py": """
import asyncio
from types import SimpleNamespace

import torch


class AsyncLLM:
    @classmethod
    def from_engine_args(cls, arguments, *, usage_context):
        assert usage_context == "server"
        return cls()

    def __init__(self):
        self.model, self.room = torch.nn.Linear(64, 64), asyncio.Semaphore(2)
        self.names = set()

    async def collective_rpc(self, name, *, args):
        assert name == "apply_model"
        args[0](self.model)

    async def generate(self, prompt, sampling, name):
        assert abs(self.model.weight.std() - 0.02) < 0.002  # not vLLM's dummy weights
        assert all(0 <= each < 50257 for each in prompt["prompt_token_ids"])
        assert name not in self.names
        self.names.add(name)
        async with self.room:
            for left in range(sampling.max_tokens, 0, -2):
                await asyncio.sleep(0.002)
                output = SimpleNamespace(token_ids=[0] * min(left, 2))
                yield SimpleNamespace(outputs=[output], finished=left <= 2)

    def shutdown(self):
        pass
""",
    "uvloop.py": """
from asyncio import run
""",
    "vllm-0.24.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WAITING", 24)
    monkeypatch.setattr(load, "LAST", 8)
    monkeypatch.setattr(arrivals, "PROMPT", (8, 0.5, 16))
    monkeypatch.setattr(arrivals, "ANSWER", (4, 0.5, 8))


def test_the_last_of_those_that_wait_are_not_waited_for() -> None:
    offered = [Request(0.0, [1], 2) for _ in range(load.LAST + 2)]
    offered[0].done = True
    assert not arrivals.all_but(load.LAST, offered)
    offered[1].done = True
    assert arrivals.all_but(load.LAST, offered)


def test_a_capacity_counts_the_tokens_of_those_that_are_not_done_too() -> None:
    offered = [Request(0.0, [1], 4, [1.0, 2.0, 2.5, 3.0], done=True), Request(0.0, [1], 2, [3.0])]
    assert arrivals.requests_per_s(offered, 5.0) == pytest.approx(5 / 5 / 3)


def test_each_share_has_requests_of_its_own_the_same_for_both_sides() -> None:
    asked = ((0.5, 0.9), 100.0, 2.0, 300)
    half, most = (offered for _, offered in load.loads(*asked))
    assert len(half) == pytest.approx(100, rel=0.3)
    assert len(most) == pytest.approx(180, rel=0.3)
    assert half[0].prompt != most[0].prompt
    assert half == next(load.loads(*asked))[1]


@pytest.mark.usefixtures("short")
def test_our_side_is_measured_at_vllms_rates_and_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    out = tmp_path / "rows.jsonl"
    arrivals_vllm_own.measure("tiny", 0.5, 40.0, out, CPU)
    rows = records.read(out)
    assert len(rows) == arrivals_vllm.CASES["fusewire"]
    assert [row["rate"] for row in rows] == [20.0, 23.0, 28.0, 32.2, 36.0, 41.4]
    assert all(row["tokens_per_s"] > 0 < row["answered"] for row in rows)
    assert rows[0]["capacities"]["vllm"] == 40.0 < rows[0]["capacities"]["fusewire"]
    assert set(rows[0]["versions"]) == {"fusewire", "torch"}


SHORT = """
import runpy
from benchmarks import arrivals
from benchmarks.gpu import arrivals_beside_vllm as load
load.WAITING, load.LAST = 24, 8
arrivals.PROMPT, arrivals.ANSWER = (8, 0.5, 16), (4, 0.5, 8)
runpy.run_module("benchmarks.gpu.arrivals_vllm_theirs", run_name="__main__")
"""


def test_vllms_side_finds_its_capacity_and_is_measured_at_shares_of_it(tmp_path: Path) -> None:
    for name, text in FAKE_VLLM.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:.:{os.environ.get('PYTHONPATH', '')}"}
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, "-c", SHORT, "gpt2", "1.0", str(out)]
    subprocess.run(command, env=environment, check=True)
    rows = records.read(out)
    assert [row["case"] for row in rows] == ["50.0%", "70.0%", "90.0%"]
    most = rows[0]["capacities"]["vllm"]
    assert 20 < most < 1000 / 4 * 2  # of two at once, each about four tokens of a millisecond
    assert [row["rate"] / most for row in rows] == pytest.approx([0.5, 0.7, 0.9], rel=0.01)
    assert all(row["answered"] > 0 and row["inter_token_ms_p50"] >= 0 for row in rows)
    assert rows[0]["versions"]["vllm"] == "0.24.0"


def test_both_sides_stand_in_one_table(tmp_path: Path) -> None:
    def measured(system: str, share: float, p99: float) -> dict[str, Any]:
        row = {"case": f"{share:.1%}", "share": share, "rate": 200 * share, "seconds": 15.0}
        row |= {"prompt": arrivals.PROMPT, "answer": arrivals.ANSWER}
        capacities = {"vllm": 200.0} | ({"fusewire": 250.0} if system == "fusewire" else {})
        seen = {"tokens_per_s": 9000.0, "first_token_ms_p50": 20.0, "first_token_ms_p99": p99}
        seen |= {"inter_token_ms_p50": 6.0, "inter_token_ms_p99": 12.0}
        row |= seen | {"capacities": capacities, "versions": {system: "1.0", "torch": "2.0"}}
        facts = FACTS | {"benchmark": "arrivals_vllm", "model": "Llama-3-8B"}
        return vllm_process.named(system, row, facts)

    rows = [measured("vllm", 0.5, 90.0), measured("fusewire", 0.5, 80.0)]
    records.append(tmp_path / "gpu.jsonl", [*rows, measured("fusewire", 0.575, 85.0)])
    found = tables.markdown(tmp_path / "gpu.jsonl").splitlines()
    lines = [line for line in found if line.startswith("| Llama")]
    assert [line.split(" | ")[2] for line in lines] == ["fusewire", "vllm", "fusewire"]
    assert lines[1].endswith("| 9,000 | 20.0 | 90.0 | 6.0 | 12.0 |")
    assert "(200.0 requests/s; fusewire 250.0)" in found[0]


def test_both_sides_are_measured_for_each_model_and_ours_is_told_vllms_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes are stood in for: each says what it was asked."""
    asked: list[list[str]] = []

    def rows_of(system: str, command: list[str], cases: int) -> records.Rows:
        asked.append(command[2:])
        capacities = {"vllm": 100.0 * len(asked)} | ({"fusewire": 1.0} if system != "vllm" else {})
        seen = dict.fromkeys(arrivals_vllm_table.KINDS, 1.0) | {"tokens_per_s": 1.0}
        row = {"case": "50.0%", "share": 0.5, "rate": 1.0, "seconds": 2.0, **seen}
        row |= {"prompt": arrivals.PROMPT, "answer": arrivals.ANSWER, "capacities": capacities}
        return [row | {"versions": {system: "1.0", "torch": "2.0"}}]

    monkeypatch.setattr(vllm_process, "require_vllm", lambda python: None)
    monkeypatch.setattr(vllm_process, "where", lambda: FACTS)
    monkeypatch.setattr(vllm_process, "rows_of", rows_of)
    out = tmp_path / "rows.jsonl"
    options = ["--models", "gpt2", "llama-8b", "--seconds", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["arrivals_vllm", *options])
    arrivals_vllm.main()
    ours, theirs = arrivals_vllm.MODULES["fusewire"], arrivals_vllm.MODULES["vllm"]
    assert asked == [
        [theirs, "gpt2", "2.0"],
        [ours, "gpt2", "2.0", "100.0"],
        [theirs, "llama-8b", "2.0"],
        [ours, "llama-8b", "2.0", "300.0"],
    ]
    written = records.read(out)
    assert [row["system"] for row in written] == ["vllm", "fusewire"] * 2
    assert all({"vllm", "fusewire"} < row["versions"].keys() for row in written)
    printed = capsys.readouterr().out
    assert printed.count("Requests that arrive at random") == 2
    assert "fusewire 1.0, torch (fusewire) 2.0" in printed
