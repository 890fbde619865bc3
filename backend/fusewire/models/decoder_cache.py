"""The keys and values of a decoder's past tokens, in pages that sequences take one at a time.

One piece of memory, [planes, pages, kv_heads, page_size, head_dim]: planes 2i and 2i + 1 are the
keys and the values of layer i. Who has which page is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fusewire import kernels
from fusewire.placement import BYTES, Placement


class DecoderCache:
    """Pages for one model; not initialised, and never cleared: a sequence reads what it wrote."""

    def __init__(
        self,
        place: Placement,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        """`page_size` positions to a page, a power of two. kernels.Error when the memory for
        so many `pages` is not there."""
        self.pages = pages
        self.page_size = page_size
        self._place = place
        page = (kv_heads, page_size, head_dim)
        plane = pages * math.prod(page)
        nbytes = plane * BYTES[place.dtype]
        block = kernels.empty([2 * layers * nbytes], "uint8", "kv_cache", place.stream)
        self._planes = block.section(0, [2 * layers, pages, math.prod(page)], place.dtype)
        planes = [
            block.section(index * nbytes, [pages, *page], place.dtype)
            for index in range(2 * layers)
        ]
        self.layers = list(zip(planes[::2], planes[1::2], strict=True))  # (keys, values)

    @property
    def nbytes(self) -> int:
        return self._planes.nbytes

    def copy_pages(self, source: Sequence[int], destination: Sequence[int]) -> None:
        """Copies page source[i] to destination[i] in every layer. No page stands on both sides."""
        if len(source) == 0 and len(destination) == 0:
            return
        both = np.array([source, destination], np.int64)
        there = self._place.exact(both.reshape(-1), np.int64)
        begin, end = (there.section(8 * len(source) * i, [len(source)], "int64") for i in (0, 1))
        kernels.copy_pages(self._planes, begin, end, self._place.stream)
