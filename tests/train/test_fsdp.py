"""What torch's FSDP divides among processes is refused by its name, with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.train.processes import EACH_DEVICE, run

SAID = re.compile(
    r"Unsupported: [\w.]+: got parameters that FSDP .* divides among processes, wanted whole ones"
    r" .*Adam\(process_group=\.\.\.\), in Step or under DistributedDataParallel"
)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_each_use_names_fsdp_and_what_to_do(device: str, tmp_path: Path) -> None:
    for seen in run("tests.train.fsdp_process", 2, tmp_path, device):
        assert len(seen) == 6 * 3 + 1
        assert {use: said for use, said in seen.items() if not SAID.fullmatch(said)} == {}
