"""The KV cache of a decoder, in pages that sequences take one at a time.

The cache does not know which sequence has which page.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import BYTES, Placement
from fusewire.weights.quantized.weight import float8_e4m3


class DecoderCache:
    """The pages of one model. They are neither initialised nor cleared: a sequence reads only what
    it wrote."""

    def __init__(
        self,
        place: Placement,
        layers: int,
        pages: int,
        page_size: int,
        width: int,
        heads: int,
    ) -> None:
        """`page_size`: positions per page, a power of two. `width`: elements of the keys of all
        `heads` per position, and of the values. Raises kernels.Error when there is not enough
        memory for `pages`."""
        self.pages = pages
        self.page_size = page_size
        self._place = place
        self._width = width
        # Planes 2 i and 2 i + 1 are the keys and the values of layer i.
        shape = [2 * layers, pages, page_size * width]
        self.planes = kernels.empty(shape, place.cache_dtype, "kv_cache", place.stream)
        # Copies move bytes, so the planes are viewed in the compute dtype.
        of_page = shape[2] * BYTES[place.cache_dtype] // BYTES[place.dtype]
        self._of_head = of_page // heads
        self._copied = self.planes.section(0, [*shape[:2], heads, self._of_head], place.dtype)

    def keys_values(self, layer: int, heads: int) -> tuple[kernels.Tensor, kernels.Tensor]:
        """Returns the keys and the values of a layer, [pages, heads, page_size, width / heads]
        each."""
        shape = [self.pages, heads, self.page_size, self._width // heads]
        nbytes = self.nbytes // self.planes.shape[0]
        first, second = (
            self.planes.section((2 * layer + part) * nbytes, shape, self.planes.dtype)
            for part in (0, 1)
        )
        return first, second

    def keys(self, layer: int, heads: int, pages: NDArray[np.int32]) -> NDArray[np.float32]:
        """Returns the keys of a layer in some pages, on the host: [heads, len(pages) * page_size,
        width / heads]. float8 codes are decoded with a scale of 1, as keys of sources are
        stored."""
        place, count = self._place, len(pages)
        row = heads * self._of_head
        plane = self.keys_values(layer, heads)[0].section(0, [self.pages, row], place.dtype)
        found = place.empty(count, row)
        kernels.gather_rows(found, plane, place.exact(pages, np.int64), place.stream)
        if self.planes.dtype == place.dtype:
            numbers = place.numpy(found)
        else:
            codes = found.section(0, [count, self.page_size * self._width], self.planes.dtype)
            numbers = float8_e4m3()[place.numpy(codes)]
        of_pages = numbers.reshape(count, heads, self.page_size, -1)
        return of_pages.swapaxes(0, 1).reshape(heads, count * self.page_size, -1)

    @property
    def nbytes(self) -> int:
        return self.planes.nbytes

    def copy_pages(
        self,
        source: Sequence[int] | NDArray[np.int64],
        destination: Sequence[int] | NDArray[np.int64],
        positions: int | None = None,
    ) -> None:
        """Copies page source[i] to destination[i] in every layer, the first `positions` of each
        page (None: all). No page may be both a source and a destination."""
        if len(source) == 0 and len(destination) == 0:
            return
        both = self._place.exact(np.array([source, destination]), np.int64)
        count = both.shape[1]
        begin, end = (both.section(8 * count * side, [count], "int64") for side in (0, 1))
        self.copy(begin, end, self.page_size if positions is None else positions)

    def copy(self, source: kernels.Tensor, destination: kernels.Tensor, positions: int) -> None:
        """As `copy_pages`, for page numbers on the device; a pair of -1 copies nothing."""
        leading = -(-self._of_head * positions // self.page_size)
        kernels.copy_pages(self._copied, source, destination, leading, self._place.stream)
