"""Any thread may read the table of targets while another forces an instruction set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.program import compiled, run

THREAD_SANITIZER = ("-fsanitize=thread", "-g1")


@pytest.mark.parametrize("flags", [(), THREAD_SANITIZER], ids=["plain", "thread sanitizer"])
def test_kernels_are_found_while_targets_are_forced(tmp_path: Path, flags: tuple[str, ...]):
    if flags:
        probe = compiled(tmp_path / "probe", "nothing", flags=flags)
        if run(probe).returncode:
            pytest.skip("the thread sanitizer does not run here")
    result = run(compiled(tmp_path / "program", "kernel_registry", "kernels", flags=flags))
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")
