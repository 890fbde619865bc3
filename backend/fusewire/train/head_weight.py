"""The projection to a vocabulary, in the form that kernels take in forward and backward."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from fusewire import kernels
from fusewire.train.torch_tensors import stream_of, view, weights_were_written

# Elements that a row of logits is a multiple of on a GPU: 128 bytes in 16 bits.
_WHOLE_ROWS = 64
_VECTOR = 16  # bytes that kernels load at once

# Rows of a weight by which writes are detected that torch does not count.
_PROBES = 64

_Seen = tuple[int, int, list[float]]  # address, version and elements of a tensor


class HeadWeight:
    """A weight [classes, features] and a bias [classes] of one dtype, computed with in `dtype`.

    Holds no reference to them. On the CPU the weight is packed for both directions; on a GPU both
    read the weight itself, or one copy of it in `dtype`.

    `width`: the size of a row of logits. Tensor cores take rows of whole vectors, and are many
    times slower with others: on a GPU the copy for a vocabulary of another size is padded with rows
    of zeros, and logits with columns of zeros, whose gradients stay zero.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._parts = [weakref.ref(tensor) for tensor in (weight, bias) if tensor is not None]
        classes = weight.shape[0]
        on_cpu = weight.device.type == "cpu"
        self.width = classes if on_cpu else -(-classes // _WHOLE_ROWS) * _WHOLE_ROWS
        self._copies: list[Tensor] = []
        self._hidden: kernels.Linear | None = None  # made when gradients are first wanted
        self._seen: list[_Seen] = []
        self._make()

    def is_of(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> bool:
        given = [tensor for tensor in (weight, bias) if tensor is not None]
        return (
            dtype == self.dtype
            and len(given) == len(self._parts)
            and all(part() is tensor for part, tensor in zip(self._parts, given, strict=True))
        )

    def follow(self) -> None:
        """Refreshes what moved, what torch counted a write to and, on a CPU, what has other values
        than before in some rows."""
        now = self._now()
        if now == self._seen:
            return
        device = self._tensors()[0].device
        moved = [pointer for pointer, *_ in now] != [pointer for pointer, *_ in self._seen]
        if moved and device.type != "cpu":
            self._make()
            return
        views, stream = self._views(), stream_of(device)
        self._logits.refresh(*views, stream=stream)
        if self._hidden is not None:
            self._hidden.refresh(views[0], stream=stream)
        weights_were_written(device)
        self._seen = now

    def logits(self, out: kernels.Tensor, x: kernels.Tensor, stream: kernels.Stream) -> None:
        kernels.linear(out, x, self._logits, "none", stream)

    def hidden_gradients(
        self, out: kernels.Tensor, dlogits: kernels.Tensor, stream: kernels.Stream
    ) -> None:
        if self._hidden is None:
            self._hidden = kernels.Linear(self._views()[0], None, stream, transposed=True)
            weights_were_written(self._tensors()[0].device)
        kernels.linear(out, dlogits, self._hidden, "none", stream)

    def _make(self) -> None:
        device = self._tensors()[0].device
        self._logits = kernels.Linear(*self._views(), stream=stream_of(device))
        self._hidden = None
        weights_were_written(device)
        self._seen = self._now()

    def _tensors(self) -> list[Tensor]:
        tensors = [part() for part in self._parts]
        return [tensor for tensor in tensors if tensor is not None]

    def _now(self) -> list[_Seen]:
        return [(t.data_ptr(), t._version, _numbers(t)) for t in self._tensors()]

    def _views(self) -> list[kernels.Tensor]:
        """The current weight and bias, in `dtype`."""
        tensors = [tensor.detach() for tensor in self._tensors()]
        classes = tensors[0].shape[0]
        on_cpu = tensors[0].device.type == "cpu"
        lies_well = all(
            t.dtype == self.dtype and t.is_contiguous() and t.data_ptr() % _VECTOR == 0
            for t in tensors
        )
        if on_cpu or (lies_well and self.width == classes):
            return [view(tensor.to(self.dtype).contiguous()) for tensor in tensors]
        if not self._copies:
            with torch.inference_mode(mode=False):  # they are written again in training
                self._copies = [
                    t.new_zeros(self.width, *t.shape[1:], dtype=self.dtype) for t in tensors
                ]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy[:classes].copy_(tensor)
        return [view(copy) for copy in self._copies]


def _numbers(tensor: Tensor) -> list[float]:
    if tensor.device.type != "cpu":  # reading them would synchronise
        return []
    some = tensor.detach()[:: max(1, len(tensor) // _PROBES)]
    numbers: list[float] = (some if some.ndim == 1 else some[:, 0]).tolist()
    return numbers
