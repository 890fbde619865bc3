"""A batch of images as a stack reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.inputs import NamedTensors
from fusewire.models.patches import BuiltPatches, Grid
from fusewire.models.stack import BuiltStack


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """What a forward reads, and where each image's hidden states begin in what it gives.
    `outputs`: the tokens that it is asked for, int64 [n], with their offsets; None: all."""

    tensors: NamedTensors
    batch: kernels.SequenceBatch
    outputs: tuple[kernels.Tensor, kernels.SequenceBatch] | None
    offsets: NDArray[np.int32]  # [images + 1]

    @classmethod
    def of(
        cls,
        built: BuiltPatches,
        grids: tuple[Grid, ...],
        patches: kernels.Tensor,
        reads: int | None,
    ) -> ImageInputs:
        """The inputs of images with these grids, whose patches are [tokens, width] as
        `BuiltPatches.cut` gives them. `reads`: how many leading tokens of each are asked for; None:
        all."""
        place = built.place
        cu_seqlens = built.cu_seqlens(grids)
        tensors, batch = built.tensors(grids, patches), place.sequences(cu_seqlens)
        if reads is None:
            return cls(tensors, batch, None, cu_seqlens)
        tokens = (cu_seqlens[:-1, None] + np.arange(reads)).reshape(-1)
        offsets = np.arange(0, tokens.size + 1, reads, dtype=np.int32)
        outputs = place.exact(tokens, np.int64), place.sequences(offsets)
        return cls(tensors, batch, outputs, offsets)

    def forward(self, stack: BuiltStack, x: kernels.Tensor, out: kernels.Tensor) -> None:
        """Fills out [offsets[-1], hidden]; x [tokens, hidden] is room, and out itself where every
        token is asked for. Takes memory from the workspace alone: it can be recorded."""
        if self.outputs is None:
            stack.forward(out, self.tensors, self.batch)
        else:
            stack.forward_outputs(out, *self.outputs, x, self.tensors, self.batch)
