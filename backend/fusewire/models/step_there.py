"""Inputs of a captured step that stay on the device for the next steps.

Where the same sequences continue by one token each, a step differs little from the one before it:
in the ids, which the device has computed itself, in positions and context lengths; and in block
tables where a page begins or beams fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fusewire import kernels
from fusewire.models.inputs import Inputs
from fusewire.models.step_batch import StepBatch
from fusewire.placement import Placement

if TYPE_CHECKING:
    from fusewire.models.step_replay import StepBucket


class StepThere:
    """What the replay of a step with `rows` has left in its graph's input block, until another step
    is written there."""

    def __init__(
        self, bucket: StepBucket, recording: tuple[Inputs, kernels.Graph], step: StepBatch
    ) -> None:
        self.bucket = bucket
        self.recording = recording
        self._rows = step.rows
        inputs, self._graph = recording
        places, count = inputs.layout.places, step.sequences
        begin, middle, table = (
            places[name][0] for name in ("positions", "context_lengths", "block_table")
        )
        _, _, (rows, pages) = places["block_table"]
        # A copy of the block from the positions on: positions, context lengths, block table.
        host = np.zeros(table - begin + 4 * rows * pages, np.uint8)
        self._positions = host[: 4 * count].view(np.int32)
        self._contexts = host[middle - begin :][: 4 * count].view(np.int32)
        whole = host[table - begin :].view(np.int32).reshape(rows, pages)
        self._table = whole[:count, : step.block_table.shape[1]]
        self._table[:] = step.block_table
        numbers, both = table - begin, host.size
        self._numbers, self._with_table = (
            (inputs.block.section(begin, [size], "uint8"), kernels.Tensor.from_numpy(host[:size]))
            for size in (numbers, both)
        )
        self._ids = inputs.rows("input_ids", count)
        self._table_there = inputs.rows("block_table", count)

    def goes_on(self, step: StepBatch) -> bool:
        """Whether this step differs from the written one only in what `replay` writes."""
        return step.rows is self._rows and step.block_table.shape == self._table.shape

    def replay(self, step: StepBatch, place: Placement) -> None:
        """Writes what differs, and replays the graph."""
        self._positions[:], self._contexts[:] = step.positions, step.context_lengths
        if step.forked is not None:
            kernels.write(*self._numbers, place.stream)
            kernels.write(self._table_there, step.forked, place.stream)
        elif (self._table != step.block_table).any():
            self._table[:] = step.block_table
            kernels.write(*self._with_table, place.stream)
        else:
            kernels.write(*self._numbers, place.stream)
        assert step.sampled is not None
        kernels.write(self._ids, step.sampled, place.stream)
        self._graph.replay(place.stream)
