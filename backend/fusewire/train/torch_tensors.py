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


def staged(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values that are copied to a device without a wait: in pinned memory where they go from the
    host to a GPU. From other memory CUDA waits for the stream's work before it copies."""
    to_gpu = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory() if to_gpu else values


def capturing(device: torch.device) -> bool:
    """Whether torch's current stream there is captured into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def computed_in(device: torch.device) -> torch.dtype:
    """Autocast's dtype where it is on for a GPU, else fp32."""
    if device.type == "cpu" or not torch.is_autocast_enabled(device.type):
        return torch.float32
    return torch.get_autocast_dtype(device.type)


def weights_were_written(device: torch.device) -> None:
    """To be called between the last write to a weight and the first kernel that reads it: on a GPU
    kernels may read weights before the work in front of them has ended (programmatic launches), so
    something that writes no weight has to stand there."""
    if device.type != "cpu":
        torch.zeros(1, device=device)


@lru_cache
def _stream(device: str, handle: int) -> Stream:
    return Stream() if device == "cpu" else Stream.borrowed(device, handle)
