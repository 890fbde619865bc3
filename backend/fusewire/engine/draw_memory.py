"""What a draw is told of its rows and what it gives: memory that is taken once for as many steps as
the same rows are drawn for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.sampling_rules import DRAW
from fusewire.engine.sampling_state import SamplingState
from fusewire.placement import Placement

_NAMES = {"i": "int32", "f": "float32"}
_DRAW = [(_NAMES[dtype.kind], at) for dtype, at, *_ in (DRAW.fields or {}).values()]


class DrawMemory:
    """Memory for the draws of one set of rows, one for each of the states."""

    def __init__(self, place: Placement, states: Sequence[SamplingState]) -> None:
        self._place = place
        count = len(states)
        host = np.zeros((16 + DRAW.itemsize) * count, np.uint8)
        self._counts = host[8 * count : 16 * count].view(np.int64)
        host[: 8 * count].view(np.int64)[:] = [state.seed for state in states]
        draws = np.frombuffer(b"".join([state.rules.draw for state in states]), np.int32)
        host[16 * count :].view(np.int32)[:] = draws.reshape(count, len(_DRAW)).T.reshape(-1)
        self._host = kernels.Tensor.from_numpy(host)
        self._there = place.empty(host.size, dtype="uint8")
        self._fixed = all([state.parameters.greedy for state in states])
        self._written = False
        seeds, steps = (self._there.section(at * count, [count], "int64") for at in (0, 8))
        # The arguments of `kernels.sample` after the logits.
        self.settings = [
            *(self._there.section((16 + at) * count, [count], dtype) for dtype, at in _DRAW),
            seeds,
            steps,
        ]
        self.out = place.empty(20 * count, dtype="uint8")  # read in one piece
        self.tokens = self.out.section(0, [count], "int64")
        self.chosen, self.total = (
            self.out.section(at * count, [count], "float32") for at in (8, 12)
        )
        self.ranks = self.out.section(16 * count, [count], "int32")

    def tell(self, counts: NDArray[np.int64]) -> None:
        """Writes how many tokens each row has. Where none is drawn at random nothing depends on
        that, and once is enough."""
        if not (self._fixed and self._written):
            self._counts[:] = counts
            kernels.write(self._there, self._host, self._place.stream)
            self._written = True
