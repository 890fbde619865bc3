"""Inputs of a recorded step that stay where they are for the steps behind it.

Of searches that go on together a step differs from the one before it in little: ids and block
tables, which the device has made itself, and positions and contexts.
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
    """What a replay of a step that names its `rows` has left in its recording's block, until
    another step is written there."""

    def __init__(
        self, bucket: StepBucket, recording: tuple[Inputs, kernels.Graph], step: StepBatch
    ) -> None:
        self.bucket = bucket
        self.recording = recording
        inputs, self._graph = recording
        self._rows = step.rows
        self._width = step.block_table.shape[1]
        begin, _, _ = inputs.layout.places["positions"]
        middle, _, (room,) = inputs.layout.places["context_lengths"]
        middle -= begin
        block = np.zeros(middle + 4 * room, np.uint8)
        count = step.sequences
        self._positions = block[: 4 * count].view(np.int32)
        self._contexts = block[middle : middle + 4 * count].view(np.int32)
        self._host = kernels.Tensor.from_numpy(block)
        self._numbers = inputs.block.section(begin, [block.size], "uint8")
        self._ids = inputs.rows("input_ids", count)
        self._table = inputs.rows("block_table", count)

    def goes_on(self, step: StepBatch) -> bool:
        """Whether nothing else differs between the step that was written and this one."""
        return step.rows is self._rows and step.block_table.shape[1] == self._width

    def replay(self, step: StepBatch, place: Placement) -> None:
        """Writes what differs, and replays the recording."""
        assert step.sampled is not None
        assert step.forked is not None
        self._positions[:], self._contexts[:] = step.positions, step.context_lengths
        for to, source in (
            (self._numbers, self._host),
            (self._ids, step.sampled),
            (self._table, step.forked),
        ):
            kernels.write(to, source, place.stream)
        self._graph.replay(place.stream)
