"""Processes under DistributedDataParallel: between CPUs by gloo, between GPUs by NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.ddp_process import ACCUMULATED, HALF
from tests.train.overlap_process import SEGMENTS
from tests.train.processes import EACH_DEVICE, run
from tests.train.test_replace import expect_equal_gradients
from tests.train.tiny_hosted import KINDS, batch, examples, model_of

ON_EACH = pytest.mark.parametrize("device", EACH_DEVICE)
Entry = tuple[str, int, float]


@ON_EACH
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one_with_the_joined_batch(
    kind: str, device: str, tmp_path: Path
) -> None:
    """Whose loss is the mean of that of both halves: they have not as many tokens."""
    first, second = run("tests.train.ddp_process", 2, tmp_path, device, kind)
    for each in ("gradients", "weights"):
        assert all(map(torch.equal, first[each].values(), second[each].values()))
    model = model_of(kind).to(device)
    halves = 2 * ACCUMULATED
    rows = examples(HALF * halves, kind)
    for number in range(halves):
        half = batch(rows[number * HALF :][:HALF], device)
        (model(**half).loss / halves).backward()
    theirs = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    expect_equal_gradients(first["gradients"], theirs)


@ON_EACH
def test_gradients_are_handed_over_before_lower_segments_are_computed(
    device: str, tmp_path: Path
) -> None:
    for entries in run("tests.train.overlap_process", 2, tmp_path, device):
        order = [(event, number) for event, number, _ in entries if event in ("computes", "sends")]
        before = [order[: order.index(("computes", s))] for s in range(SEGMENTS)]
        handed = [sum(event == "sends" for event, _ in each) for each in before]
        assert handed[0] > handed[1] > handed[2] > 0  # from the lowest segment up


@pytest.mark.gpu(count=2)  # threads on CPUs share the cores: when one of them runs says nothing
@pytest.mark.alone
def test_on_gpus_gradients_travel_while_lower_segments_are_computed(tmp_path: Path) -> None:
    for entries in run("tests.train.overlap_process", 2, tmp_path, "cuda"):
        assert len(overlapping(entries)) >= 2


def overlapping(entries: list[Entry]) -> list[int]:
    """Buckets whose all-reduce ended while a segment was computed: one that waited for the other's
    end would not."""
    at = {(event, number): ms for event, number, ms in entries}
    segments = [(at["computes", s], at["computed", s]) for s in range(SEGMENTS)]
    return [
        number
        for event, number, ms in entries
        if event == "sent" and any(begin < ms < end for begin, end in segments)
    ]
