"""The input block of images: one matrix product of their patches, added to rows that hold what does
not depend on the pixels (positions, bias, class tokens)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.float_types import converted
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Patches
from fusewire.models.inputs import NamedTensors
from fusewire.models.patch_positions import resampled
from fusewire.placement import Placement

# Patches of one image of any aspect ratio: 2048 x 2048 pixels in patches of 16 x 16.
MOST_TOKENS_OF_IMAGE = 1 << 14
_COLUMNS = 8  # 16-bit elements in 16 bytes, the vector loads of kernels
_MOST_TABLES = 16  # tables of initial values that are cached

Grid = tuple[int, int]  # rows and columns of patches


class BuiltPatches:
    """Patches with their weights."""

    def __init__(self, patches: Patches, weights: Weights, place: Placement) -> None:
        self._patches = patches
        self.place = place
        hidden = patches.projection.shape[0]
        projection = weights.fp32(patches.projection.name).reshape(hidden, -1)
        self._width = _rounded_up(projection.shape[1])
        padded = np.zeros((hidden, self._width), np.float32)
        padded[:, : projection.shape[1]] = projection
        self._projection = place.linear(padded, None, patches.projection.name)
        self._norm = (*weights.norm(patches.norm), patches.norm.eps) if patches.norm else None

        position = weights.fp32(patches.position.name).reshape(-1, hidden)
        leading = [weights.fp32(each.name).reshape(1, hidden) for each in patches.leading]
        count = len(leading)
        self._leading = np.concatenate(leading) + position[:count] if count else position[:0]
        self._positions = position[count:].reshape(*patches.grid, hidden)
        self._bias = weights.fp32(patches.bias.name) if patches.bias else np.float32(0)
        self._tables: dict[tuple[Grid, ...], kernels.Tensor] = {}

    @property
    def leading_tokens(self) -> int:
        """The number of tokens of each image before its patches."""
        return len(self._leading)

    @property
    def trained_grid(self) -> Grid:
        """The grid that the model's own positions are for."""
        return self._patches.grid

    def cu_seqlens(self, grids: Sequence[Grid]) -> NDArray[np.int32]:
        """Returns the offsets of the tokens of images with these grids."""
        lengths = (self.leading_tokens + rows * columns for rows, columns in grids)
        return np.cumsum([0, *lengths], dtype=np.int32)

    def blank(self, tokens: int) -> kernels.Tensor:
        """Returns patches of zeros [tokens, width], in the format of `cut`."""
        return self.place.floats(np.zeros((tokens, self._width), np.float32), "patches", "input")

    def cut(
        self,
        images: Sequence[NDArray[np.float32]],
        grids: Sequence[Grid],
        room: kernels.Tensor | None = None,
    ) -> kernels.Tensor:
        """Returns the pixels of each token, [tokens, width], of images [channels, height, width]
        with these grids, in the first rows of `room` if it is given: for a patch [channels, size,
        size] flattened, for a leading token zeros. Raises InvalidInput if pixels are not finite,
        ConfigurationError if they overflow the placement's dtype."""
        place, cu_seqlens = self.place, self.cu_seqlens(grids)
        tokens = int(cu_seqlens[-1])
        out = place.empty(tokens, self._width) if room is None else room.first(tokens)
        largest = place.empty(len(images), dtype="float32")
        begins = np.cumsum([0, *(image.size for image in images)])
        shapes = [image.shape[1:] for image in images]
        described = np.column_stack([cu_seqlens[:-1], begins[:-1], shapes])
        kernels.cut_patches(
            out,
            largest,
            place.end_to_end(images),
            place.exact(described, np.int64),
            self._patches.projection.shape[1],
            self._patches.size,
            self.leading_tokens,
            place.stream,
        )
        found = place.numpy(largest)
        if not np.isfinite(found).all():
            got, wanted = "a number that is not finite", "finite numbers"
            raise InvalidInput("pixel_values", got, wanted, "correct the preprocessing")
        converted(found, place.dtype, "pixel_values")
        return out

    def tensors(
        self, grids: Sequence[Grid], patches: kernels.Tensor
    ) -> dict[str, kernels.Tensor | None]:
        """Returns the input of `forward` for images with these grids and their patches [tokens,
        width]."""
        distinct = tuple(dict.fromkeys(grids))
        begin_of = dict(zip(distinct, self.cu_seqlens(distinct).tolist(), strict=False))
        cu_seqlens = self.cu_seqlens(grids)
        rows = [
            np.arange(begin_of[grid], begin_of[grid] + length)
            for grid, length in zip(grids, np.diff(cu_seqlens), strict=True)
        ]
        return {
            "patches": patches,
            "rows": self.place.exact(np.concatenate(rows), np.int64),
            "table": self._table(distinct),
            "positions": None,
        }

    def forward(self, x: kernels.Tensor, inputs: NamedTensors) -> None:
        """Writes x [tokens, hidden]."""
        stream = self.place.stream
        kernels.gather_rows(x, inputs["table"], inputs["rows"], stream)
        kernels.linear_add(x, inputs["patches"], self._projection, x, stream)
        if self._norm is not None:
            kernels.layer_norm(x, x, *self._norm, stream)

    def grid(self, image: NDArray[np.float32]) -> Grid:
        """Returns the grid of patches of an image; pixels beyond whole patches are dropped, as by a
        convolution. Raises InvalidInput."""
        size, channels = self._patches.size, self._patches.projection.shape[1]
        if image.ndim != 3 or image.shape[0] != channels:
            raise InvalidInput(
                "pixel_values",
                f"the shape {list(image.shape)}",
                f"[{channels}, height, width]",
                "send channels first",
            )
        rows, columns = image.shape[1] // size, image.shape[2] // size
        if not 0 < rows * columns <= MOST_TOKENS_OF_IMAGE:
            raise InvalidInput(
                "pixel_values",
                f"{image.shape[1]} x {image.shape[2]} pixels",
                f"1 to {MOST_TOKENS_OF_IMAGE} patches of {size} x {size}",
                "resize the image",
            )
        return rows, columns

    def _table(self, grids: tuple[Grid, ...]) -> kernels.Tensor:
        """Returns the initial value of each token of images with these grids, one grid after
        another."""
        if grids not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.pop(next(iter(self._tables)))
            hidden = self._positions.shape[-1]
            parts = []
            for grid in grids:
                positions = resampled(self._positions, *grid).reshape(-1, hidden)
                parts += [self._leading, positions + self._bias]
            self._tables[grids] = self.place.floats(np.concatenate(parts), "positions")
        return self._tables[grids]


def _rounded_up(columns: int) -> int:
    return (columns + _COLUMNS - 1) // _COLUMNS * _COLUMNS
