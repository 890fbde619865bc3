"""Captured forwards of images: small batches with grids seen before are replayed by a single
launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.image_inputs import ImageInputs
from fusewire.models.patches import BuiltPatches, Grid
from fusewire.models.recordings import Recordings

# forward(inputs, x, out): as `ImageInputs.forward`
Forward = Callable[[ImageInputs, kernels.Tensor, kernels.Tensor], None]


class ImageReplays(Recordings[tuple[Grid, ...], ImageInputs]):
    """The captured forwards of one encoder of images, by the grids of a batch: batches of one key
    differ only in their pixels."""

    def __init__(
        self,
        built: BuiltPatches,
        reads: int | None,
        forward: Forward,
        workspace: kernels.Workspace,
        hidden_size: int,
    ) -> None:
        super().__init__(built.place, workspace, forward)
        self._built = built
        self._reads = reads
        self._x = built.place.empty(MOST_TOKENS, hidden_size)
        self._out = self._x if reads is None else built.place.empty(MOST_TOKENS, hidden_size)
        self._patches = built.blank(MOST_TOKENS)

    def run(
        self, grids: tuple[Grid, ...], images: Sequence[NDArray[np.float32]]
    ) -> tuple[kernels.Tensor, NDArray[np.int32]] | None:
        """Returns (hidden states that are valid until the next run, offsets of each image) for
        images [channels, height, width] with these grids. Returns None for a batch that is too
        large to be worth capturing, or the first with its grids. Raises the errors of
        `BuiltPatches.cut`."""
        tokens = int(self._built.cu_seqlens(grids)[-1])
        if tokens > MOST_TOKENS or (found := self.find(grids)) is None:
            return None
        inputs, graph = found
        self._built.cut(images, grids, self._patches)
        graph.replay(self._place.stream)
        return self._out.first(int(inputs.offsets[-1])), inputs.offsets

    def _prepare(self, key: tuple[Grid, ...]) -> tuple[ImageInputs, Callable[[], None]]:
        """Returns inputs with the pixels of the last batch, whatever they are, and the forward over
        them."""
        tokens = int(self._built.cu_seqlens(key)[-1])
        inputs = ImageInputs.of(self._built, key, self._patches.first(tokens), self._reads)
        x, out = self._x.first(tokens), self._out.first(int(inputs.offsets[-1]))
        return inputs, lambda: self._forward(inputs, x, out)
