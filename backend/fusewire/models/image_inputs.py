"""A batch of images as the input of a stack."""

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
    """The input of a forward, and the offsets of each image's hidden states in its output.
    `outputs`: the tokens to compute, int64 [n], with their offsets; None: all."""

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
        """Returns the inputs for images with these grids and their patches [tokens, width], as
        `BuiltPatches.cut` returns them. `reads`: the number of leading tokens of each image to
        compute; None: all tokens."""
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
        """Writes out [offsets[-1], hidden]. x [tokens, hidden] is scratch memory, unused if every
        token is computed. Allocates only from the workspace, so it can be captured."""
        if self.outputs is None:
            stack.forward(out, self.tensors, self.batch)
        else:
            stack.forward_outputs(out, *self.outputs, x, self.tensors, self.batch)
