"""Copies of parameters in the dtypes that kernels read them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fusewire.train.torch_tensors import weights_were_written

Version = tuple[int, int, int]  # FlatParameters.version


class RoundedCopies:
    """Of a buffer of parameters, fp32 [elements]: one a dtype, each with the version of the
    parameters that it is of. In fp32 it is the buffer itself.

    Whoever takes steps in a row lets the optimizer write a copy with the parameters
    (`written_along`). For others it is made anew behind each step: they may have written
    parameters as torch does not count.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._copies: dict[torch.dtype, torch.Tensor] = {}
        self._versions: dict[torch.dtype, Version] = {}
        self._along: torch.dtype | None = None
        self._left: tuple[torch.dtype, Version] | None = None  # by the last that was written along

    def read(self, dtype: torch.dtype, now: Version) -> torch.Tensor:
        """[elements], made anew where it is of another version than `now`."""
        if dtype not in self._copies:
            whole = dtype == torch.float32
            with torch.inference_mode(mode=False):  # it is written again in training
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
        """Meanwhile `to_write` is the copy in this dtype. `version`: of the parameters, then."""
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
        """What an optimizer writes with the parameters: a copy that is of this version. None on a
        CPU, whose kernels write fp32 alone."""
        if self._along is None or self._values.device.type == "cpu":
            return None
        is_copy = self._along != torch.float32 and self._versions.get(self._along) == now
        return self._copies[self._along] if is_copy else None

    def was_written(self, now: Version) -> None:
        """Says that what `to_write` gave is of this version."""
        if self._along is not None:
            self._versions[self._along] = now
