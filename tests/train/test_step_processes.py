"""Whole steps that processes take together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.tolerance import TRAINED_VERSUS_EAGER
from tests.train.processes import EACH_DEVICE, run
from tests.train.scaler_process import INFINITE, SCALE

NAMES = ["BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"]


def steps_are_of_all_rows(name: str, device: str, count: int, folder: Path) -> None:
    """However many rows and labels each process has."""
    seen = run("tests.train.step_process", count, folder, device, name)
    for got, wanted in zip(seen[0]["got"], seen[0]["wanted"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=TRAINED_VERSUS_EAGER, atol=0)
    for one, other in pairwise(seen):
        assert one["got"] == other["got"]
        assert all(map(torch.equal, one["weights"], other["weights"]))
    assert all((one["replays"] > 0) == (device == "cuda") for one in seen)


@pytest.mark.parametrize("device", EACH_DEVICE)
@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.sweep) for name in NAMES[1:])]
)
def test_two_processes_take_the_step_of_all_their_rows(
    name: str, device: str, tmp_path: Path
) -> None:
    steps_are_of_all_rows(name, device, 2, tmp_path)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(count=3))])
def test_three_processes_take_the_step_of_all_their_rows(device: str, tmp_path: Path) -> None:
    steps_are_of_all_rows("BertForSequenceClassification", device, 3, tmp_path)


@pytest.mark.parametrize("device", EACH_DEVICE)
def test_all_skip_and_scale_alike_where_one_overflows(device: str, tmp_path: Path) -> None:
    first, second = run("tests.train.scaler_process", 2, tmp_path, device)
    scales = [SCALE * factor for factor in (1, 2, 2, 1, 1, 2, 2)]
    assert first["scales"] == second["scales"] == scales
    for one in (first, second):
        assert one["skipped"] == 1
        weights = one["weights"]
        changed = [not torch.equal(*pair) for pair in pairwise(weights)]
        assert changed == [step != INFINITE for step in range(1, len(weights))]
        assert (one["replays"] > 0) == (device == "cuda")
    assert all(map(torch.equal, first["weights"], second["weights"]))
