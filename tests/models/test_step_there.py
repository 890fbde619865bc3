"""A step that continues from what the previous one left in a graph's block finds the block as if it
had been written completely."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fusewire import kernels
from fusewire.models.inputs import Inputs
from fusewire.models.step_batch import SourceTable, StepBatch, step_layout
from fusewire.models.step_replay import StepBucket
from fusewire.models.step_there import StepThere
from fusewire.placement import Placement

PLACE = Placement("cpu", "float32")
BUCKET = StepBucket(sequences=8, pages=8, source_pages=8)
LAYOUT = step_layout(8, 8, BUCKET.pages, 8, BUCKET.source_pages)
WIDTH = 5  # width of the host's block tables
RNG = np.random.default_rng(3)


class Graph:
    """A stand-in for a graph: records the contents of its block when it is replayed."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self.read: list[bytes] = []

    def replay(self, stream: kernels.Stream) -> None:
        self.read.append(PLACE.numpy(self._inputs.block).tobytes())


def step(
    position: int, rows: object, *, forked: bool, table: np.ndarray | None = None
) -> StepBatch:
    """Returns a step of five sequences, whose ids are on the device, and the block table too where
    it is `forked`."""
    ids = PLACE.exact(RNG.integers(0, 99, 5), np.int64)
    width = BUCKET.pages if forked else WIDTH
    if table is None:
        table = RNG.integers(1, 9, (5, width)).astype(np.int32)
    return StepBatch(
        input_ids=np.zeros(5, np.int64),
        positions=np.arange(5, dtype=np.int32) + position,
        cu_seqlens=np.arange(6, dtype=np.int32),
        context_lengths=np.arange(5, dtype=np.int32) + position + 1,
        block_table=np.zeros_like(table) if forked else table,
        logit_rows=np.arange(5),
        sources=SourceTable(np.full(5, 3, np.int32), np.full((5, 1), 7, np.int32)),
        sampled=ids,
        forked=PLACE.exact(table, np.int32) if forked else None,
        rows=rows,
    )


def written(inputs: Inputs, of: StepBatch) -> bytes:
    """Writes the whole step and returns the block."""
    block = kernels.Tensor.from_numpy(LAYOUT.pack(of.arrays))
    kernels.write(inputs.block, block, PLACE.stream)
    for name, tensor in of.there.items():
        inputs.write(name, tensor, PLACE)
    return PLACE.numpy(inputs.block).tobytes()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "decodes"])
def test_steps_of_the_same_rows_find_the_block_as_if_all_were_written(forked):
    rows = object()
    first = step(4, rows, forked=forked)
    others = [step(position, rows, forked=forked) for position in (5, 6)]
    others += [
        step(7, rows, forked=forked, table=None if forked else others[-1].block_table.copy())
    ]
    inputs, twin = (Inputs.upload(LAYOUT, {}, PLACE) for _ in range(2))
    graph = Graph(inputs)
    written(inputs, first)
    there = StepThere(BUCKET, (inputs, graph), first)
    for each in others:
        assert there.goes_on(each)
        there.replay(each, PLACE)
    assert graph.read == [written(twin, each) for each in others]


def test_a_step_of_other_rows_or_a_wider_table_does_not_go_on():
    rows = object()
    first = step(4, rows, forked=False)
    inputs = Inputs.upload(LAYOUT, {}, PLACE)
    there = StepThere(BUCKET, (inputs, Graph(inputs)), first)
    wider = np.ones((5, WIDTH + 1), np.int32)
    assert not there.goes_on(step(5, object(), forked=False))
    assert not there.goes_on(replace(first, rows=None))
    assert not there.goes_on(step(5, rows, forked=False, table=wider))
