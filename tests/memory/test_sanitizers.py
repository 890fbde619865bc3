"""The memory library under AddressSanitizer and UndefinedBehaviorSanitizer: random work of four
threads is clean, and deliberate misuse is detected (so that the clean run has a meaning)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.memory.native import COMPILER, compiled

SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitizers")
    if not COMPILER:
        pytest.skip("no C++ compiler here")
    probe = subprocess.run(
        [COMPILER, *SANITIZERS, "-x", "c++", "-", "-o", folder / "probe"],
        input="int main() {}",
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode or run(folder / "probe").returncode:
        pytest.skip(f"{COMPILER} has no working address sanitizer here")
    return compiled(folder / "stress", ["stress.cc", "fake_device.cc"], *SANITIZERS)


@pytest.mark.sweep
def test_random_work_from_four_threads_is_clean(stress: Path) -> None:
    result = run(stress)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize(
    "name", ["use_after_free", "overflow", "scratch_overflow", "scratch_use_after_release"]
)
def test_misuse_is_caught(stress: Path, name: str) -> None:
    result = run(stress, "misuse", name)
    assert result.returncode != 0
    assert "AddressSanitizer: use-after-poison" in result.stderr
