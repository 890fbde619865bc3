"""Torch's tensors and streams in the form that kernels take."""

from __future__ import annotations

from functools import lru_cache

import torch

from fusewire.errors import ConfigurationError
from fusewire.kernels import Stream, Tensor

PARAMETER_DTYPES = (torch.float32, torch.bfloat16)  # that parameters are trained in


def view(tensor: torch.Tensor) -> Tensor:
    """The same memory as a tensor of `fusewire.kernels`."""
    return Tensor.from_dlpack(tensor.detach())


def stream_of(device: torch.device) -> Stream:
    """The current stream of torch on the device: kernels on it run in order with torch's own, and
    memory is returned to either allocator in that order."""
    if device.type == "cpu":
        return _stream("cpu", 0)
    return _stream(str(device), torch.cuda.current_stream(device).cuda_stream)


def staged(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values that can be copied to a device without a synchronisation: in pinned memory if they go
    from the host to a GPU. From other memory CUDA waits for the stream's work before it copies."""
    to_gpu = device.type == "cuda" and values.device.type == "cpu"
    return values.pin_memory() if to_gpu else values


def capturing(device: torch.device) -> bool:
    """Whether torch's current stream on the device is being captured into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def computed_in(device: torch.device, parameters: torch.dtype) -> torch.dtype:
    """The dtype that kernels compute in: fp32 on a CPU; on a GPU autocast's where it is enabled,
    otherwise that of the parameters. Raises ConfigurationError for an autocast to another dtype
    than that of parameters in 16 bits."""
    if device.type == "cpu":
        return torch.float32
    if not torch.is_autocast_enabled(device.type):
        return parameters
    dtype = torch.get_autocast_dtype(device.type)
    if parameters not in (torch.float32, dtype):
        raise ConfigurationError(
            f"autocast: got {dtype} with parameters in {parameters}, wanted {parameters}; or keep "
            "parameters in float32"
        )
    return dtype


def weights_were_written(device: torch.device) -> None:
    """To be called between the last write to a weight and the first kernel that reads it: on a GPU
    kernels may read weights before the preceding work has ended (programmatic dependent launch), so
    an operation that writes no weight has to come between."""
    if device.type != "cpu":
        torch.zeros(1, device=device)


@lru_cache
def _stream(device: str, handle: int) -> Stream:
    return Stream() if device == "cpu" else Stream.borrowed(device, handle)
