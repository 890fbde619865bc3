"""Every attack, once: `python -m tests.attacks --times 3` replays them three times in a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.sweep
@pytest.mark.server
@pytest.mark.alone
def test_the_service_withstands_every_attack() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
