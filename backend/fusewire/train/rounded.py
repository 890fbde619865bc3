"""Copies of parameters in the dtypes that kernels read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fusewire.train.torch_tensors import weights_were_written

Version = tuple[int, int, int]  # FlatParameters.version


class RoundedCopies:
    """Copies of a buffer of parameters [elements], one per dtype, each with the version of the
    parameters that it was made from. For the buffer's dtype it is the buffer itself.

    In a loop of steps the optimizer writes a copy together with the parameters (`written_along`).
    Otherwise the copy is made again after each step, as parameters may have been written in a way
    that torch does not count.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._copies: dict[torch.dtype, torch.Tensor] = {}
        self._versions: dict[torch.dtype, Version] = {}
        self._along: torch.dtype | None = None
        self._left: tuple[torch.dtype, Version] | None = None  # what the last `written_along` left

    def read(self, dtype: torch.dtype, now: Version) -> torch.Tensor:
        """The copy [elements] in this dtype, made again if its version is not `now`."""
        if dtype not in self._copies:
            whole = dtype == self._values.dtype
            with torch.inference_mode(mode=False):  # it is written in training later
                self._copies[dtype] = (
                    self._values if whole else torch.empty_like(self._values, dtype=dtype)
                )
        copy = self._copies[dtype]
        if self._versions.get(dtype) != now:
            if copy is not self._values:
                copy.copy_(self._values)
            weights_were_written(copy.device)
            self._versions[dtype], self._left = now, None
        return copy

    @contextmanager
    def written_along(self, dtype: torch.dtype, version: Callable[[], Version]) -> Iterator[None]:
        """While the context is open, `to_write` returns the copy in this dtype. `version`: returns
        the current version of the parameters."""
        self._versions.pop(dtype, None)
        if self._left == (dtype, version()):
            self._versions[dtype] = version()
        self.read(dtype, version())
        self._along = dtype
        try:
            yield
        finally:
            self._along = None
            if self._versions.get(dtype) == version():
                self._left = dtype, self._versions.pop(dtype)

    def to_write(self, now: Version) -> torch.Tensor | None:
        """The copy that an optimizer writes together with the parameters, if its version is `now`.
        None on a CPU, where kernels pack what they read."""
        if self._along is None or self._values.device.type == "cpu":
            return None
        is_copy = self._along != self._values.dtype and self._versions.get(self._along) == now
        return self._copies[self._along] if is_copy else None

    def was_written(self, now: Version) -> None:
        """Sets the version of the copy that `to_write` returned."""
        if self._along is not None:
            self._versions[self._along] = now
