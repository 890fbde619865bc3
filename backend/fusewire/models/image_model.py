"""An encoder of images: maps pixel values to hidden states, and these to the results of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Blueprint
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.image_head import BuiltImageHead
from fusewire.models.image_inputs import ImageInputs
from fusewire.models.image_replay import ImageReplays
from fusewire.models.patches import BuiltPatches
from fusewire.models.whole_sequences import MOST_HEAD_ROWS, WholeSequenceModel
from fusewire.placement import Placement
from fusewire.weights import Checkpoint


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Last hidden states, [tokens, hidden]: for each image its leading tokens (class,
    distillation), and if the head reads them or every token was asked for, its patches, row by
    row."""

    hidden: kernels.Tensor
    cu_seqlens: NDArray[np.int32]  # [images + 1]


class ImageModel(WholeSequenceModel):
    """A loaded encoder of images, with the head of one task."""

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        head: str,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
        id2label: list[str],
    ) -> None:
        super().__init__(blueprint, head, checkpoint, place, config=config, folder=folder)
        self.id2label = id2label
        self._replays: ImageReplays | None = None

    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None:
        assert head is not None
        assert isinstance(self._stack.input_block, BuiltPatches)
        self._patches = self._stack.input_block
        leading = self._patches.leading_tokens
        self._head = BuiltImageHead(blueprint.task_heads[head], leading, weights, self.place)

    def tokens(self, image: NDArray[np.float32]) -> int:
        """Returns the number of tokens of an image [channels, height, width]. Raises InvalidInput
        for its shape, as `encode` does."""
        rows, columns = self._patches.grid(image)
        return self._patches.leading_tokens + rows * columns

    @property
    def replay_counts(self) -> tuple[int, int]:
        """(Batches that replayed a captured forward, small batches that found none)."""
        return (self._replays.hits, self._replays.misses) if self._replays else (0, 0)

    def record_forwards(self, max_tokens: int = MOST_TOKENS) -> None:
        """From now on small batches with grids of patches seen before replay a captured forward
        (CUDA graphs), where the device can; hidden states are then valid until the next `encode`.
        First tunes for batches of `max_tokens`, and captures a single image of the size that the
        model was trained with."""
        self.tune(max_tokens)
        if not self.place.stream.can_capture:
            return
        self._replays = ImageReplays(
            self._patches, self._head.reads, self._forward, self._workspace, self.hidden_size
        )
        self._replays.record((self._patches.trained_grid,))

    def encode(
        self, images: Sequence[NDArray[np.float32]], *, every_token: bool = False
    ) -> EncodedImages:
        """Encodes images of pixel values [channels, height, width], which may have different sizes.
        The last layer computes only the tokens that the head reads, unless `every_token`. Raises
        InvalidInput for another shape, for no or too many patches, and for values that are not
        finite."""
        if not images:
            raise InvalidInput("pixel_values", "no image", "1 or more", "send one")
        grids = tuple(map(self._patches.grid, images))
        if self._replays is not None and not every_token:
            replayed = self._replays.run(grids, images)
            if replayed is not None:
                return EncodedImages(*replayed)
        patches = self._patches.cut(images, grids)
        reads = None if every_token else self._head.reads
        inputs = ImageInputs.of(self._patches, grids, patches, reads)
        x = self.place.empty(patches.shape[0], self.hidden_size)
        out = x if reads is None else self.place.empty(int(inputs.offsets[-1]), self.hidden_size)
        self._forward(inputs, x, out)
        return EncodedImages(out, inputs.offsets)

    def results(self, encoded: EncodedImages) -> NDArray[np.float32]:
        """Returns the head's results: logits [images, labels], or embeddings [images, size]."""
        return self.place.numpy(self._head.apply(encoded.hidden, encoded.cu_seqlens)).copy()

    def _forward(self, inputs: ImageInputs, x: kernels.Tensor, out: kernels.Tensor) -> None:
        inputs.forward(self._stack, x, out)

    def _try_out(self, hidden: kernels.Tensor) -> None:
        tokens, built, place = hidden.shape[0], self._patches, self.place
        # Matrix products do not depend on the grid, so the last image may be incomplete.
        length = int(built.cu_seqlens([built.trained_grid])[-1])
        offsets = np.append(np.arange(0, tokens, length), tokens)
        rows = place.exact(np.arange(tokens) % length, np.int64)
        inputs = built.tensors([built.trained_grid], built.blank(tokens))
        self._stack.forward(hidden, {**inputs, "rows": rows}, place.sequences(offsets))
        if tokens <= MOST_HEAD_ROWS:
            each = built.leading_tokens + 1
            x = place.floats(np.zeros((tokens * each, self.hidden_size), np.float32), "hidden")
            self._head.apply(x, np.arange(0, tokens * each + 1, each, dtype=np.int32))
