"""Whole steps that processes take together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.processes import EACH_DEVICE, run


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"]
)
def test_two_processes_take_the_step_of_all_their_rows(
    name: str, device: str, tmp_path: Path
) -> None:
    """However many rows and labels each has."""
    first, second = run("tests.train.step_process", 2, tmp_path, device, name)
    assert first["got"] == second["got"]
    for got, wanted in zip(first["got"], first["wanted"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    assert all(map(torch.equal, first["weights"], second["weights"]))
