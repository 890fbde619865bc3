"""What the device is told of the forks of searches that go on together, and what it makes of them:
memory that is taken once for as many steps as they stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.placement import Placement

_COLUMNS = 5  # for each search: its candidates, first parent and first child, its beams, its page


class ForkMemory:
    """Memory for the forks of searches whose beams have the rows offsets[i] to offsets[i + 1], in
    block tables of `width` pages."""

    def __init__(
        self,
        place: Placement,
        offsets: NDArray[np.int32],
        ends: NDArray[np.int32],
        width: int,
    ) -> None:
        """`ends`: tokens that end a text, [searches, most of one], -1 in what is left."""
        searches, rows = len(offsets) - 1, int(offsets[-1])
        self.width = width
        self._place = place
        places = np.cumsum([0, _COLUMNS * searches, rows, ends.size]).tolist()
        host = np.zeros(places[-1], np.int32)
        groups, self._fresh, given = (host[begin:end] for begin, end in pairwise(places))
        self._groups = groups.reshape(searches, _COLUMNS)
        self._groups[:, 2], self._groups[:, 3] = offsets[:-1], np.diff(offsets)
        given[:] = ends.reshape(-1)
        self._fresh[:] = -1
        self._given = False  # whether the device has pages in `fresh`
        self._host = kernels.Tensor.from_numpy(host)
        self._there = place.empty(host.size, dtype="int32")
        shapes: list[list[int]] = [[searches, _COLUMNS], [rows], [*ends.shape]]
        self._inputs = [
            self._there.section(4 * begin, shape, "int32")
            for begin, shape in zip(places, shapes, strict=False)
        ]
        # The searches that the candidates are of, and where the pages to write to lie.
        self._of: object = None
        self._pages: NDArray[np.int32] | None = None
        self.ids = place.empty(rows, dtype="int64")
        # Block tables: the last fork's, which the next one reads, and room for its own.
        self._tables = [place.empty(rows, width, dtype="int32") for _ in range(2)]
        self._copies = place.empty(2, rows, dtype="int64")
        self.copies = [self._copies.section(8 * rows * side, [rows], "int64") for side in (0, 1)]

    def tell(
        self,
        of: object,
        searches: Sequence[int] | None,
        begins: NDArray[np.int32],
        pages: NDArray[np.int32],
        fresh: NDArray[np.int32] | None,
    ) -> None:
        """Writes what the next fork reads to the device; nothing where all is as it was, as after
        most steps.

        `of` stands for the searches that there are candidates of. Where they are others than in the
        last step, `searches` has the place of each of ours among them (None: all, in order), and
        `begins` its first row. `pages`: index in its block table of the page that each is to write
        to. `fresh`: the pages that rows write to, as `kernels.give_pages` has them; None: their
        parents'.
        """
        if of is self._of and pages is self._pages and fresh is None and not self._given:
            return
        if of is not self._of:
            self._groups[:, 0] = range(len(self._groups)) if searches is None else searches
            self._groups[:, 1] = begins
            self._of = of
        self._groups[:, 4] = self._pages = pages
        if fresh is not None or self._given:
            self._fresh[:] = -1 if fresh is None else fresh
        self._given = fresh is not None
        kernels.write(self._there, self._host, self._place.stream)

    def fork(
        self, scores: kernels.Tensor, found: Sequence[kernels.Tensor], parents: kernels.Tensor
    ) -> kernels.Tensor:
        """Forks beams by what was `found`, and by the block table of the `parents`: fills `ids`,
        `copies` and the beams' `scores`. Returns the next step's block table."""
        first, second = self._tables
        table = second if parents is first else first
        kernels.fork_beams(
            self.ids,
            scores,
            table,
            self._copies,
            *found,
            parents,
            *self._inputs,
            self._place.stream,
        )
        return table
