"""Torch's tensors and streams, as kernels take them."""

from __future__ import annotations

from functools import lru_cache

import torch

from fusewire.kernels import Stream, Tensor


def view(tensor: torch.Tensor) -> Tensor:
    """The same memory."""
    return Tensor.from_dlpack(tensor.detach())


def stream_of(device: torch.device) -> Stream:
    """What torch gives its own work on the device to now: kernels on it follow torch's and are
    followed by them, and memory goes back to either allocator in that order."""
    if device.type == "cpu":
        return _stream("cpu", 0)
    return _stream(str(device), torch.cuda.current_stream(device).cuda_stream)


@lru_cache
def _stream(device: str, handle: int) -> Stream:
    return Stream() if device == "cpu" else Stream.borrowed(device, handle)
