"""torch on fusewire's allocator, in its own process (test_torch_memory.py): torch accepts an
allocator only once, before its first CUDA tensor."""

from __future__ import annotations

import sys

import fusewire
import pytest
import torch
from fusewire.errors import ConfigurationError
from fusewire.kernels import default_allocator

MIB = 1 << 20


def stats() -> dict:
    return default_allocator("cuda").stats()


def torch_bytes() -> int:
    return stats()["holders"].get("torch", (0, 0))[0]


def too_late() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(ConfigurationError, match="before the first CUDA tensor"):
        fusewire.use_torch_allocator()


def tensors_are_fusewires() -> None:
    fusewire.use_torch_allocator()
    fusewire.use_torch_allocator()
    before = torch_bytes()
    tensor = torch.full((MIB,), 3.0, device="cuda")
    assert torch_bytes() == before + 4 * MIB
    address = tensor.data_ptr()
    del tensor
    assert torch_bytes() == before
    block = default_allocator("cuda").allocate(4 * MIB, "ours")
    assert block.data == address, "what torch let go of serves us"
    block.free()
    a = torch.randn(300, 300, device="cuda")
    assert torch.allclose((a @ a).cpu(), a.cpu() @ a.cpu(), atol=1e-3)


def a_recorded_stream_is_waited_for() -> None:
    fusewire.use_torch_allocator()
    side = torch.cuda.Stream()
    tensor = torch.zeros(MIB, device="cuda")
    with torch.cuda.stream(side):
        tensor.add_(1)  # loads the kernel
    torch.cuda.synchronize()
    address = tensor.data_ptr()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        tensor.add_(1)
        tensor.record_stream(side)
    del tensor
    assert stats()["waiting_blocks"] == 1
    assert torch.empty(MIB, device="cuda").data_ptr() != address
    torch.cuda.synchronize()
    assert torch.empty(3 * MIB, device="cuda") is not None
    assert stats()["waiting_blocks"] == 0


def a_captured_graph_keeps_its_memory() -> None:
    fusewire.use_torch_allocator()

    def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ((x * 3 + 1).relu() * x).sum(), x.exp() * 2

    def others() -> list[torch.Tensor]:
        return [torch.full((1 << 16,), float("nan"), device="cuda") for _ in range(64)]

    source = torch.full((1 << 16,), 2.0, device="cuda")
    for _ in range(2):
        work(source)
    torch.cuda.synchronize()
    live = stats()["live_blocks"]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total, other = work(source)
    neighbours = others()
    for value in (1.0, 2.5):
        source.fill_(value)
        graph.replay()
        neighbours += others()
        graph.replay()
        torch.cuda.synchronize()
        expected = (3 * value + 1) * value * (1 << 16)
        assert abs(total.item() - expected) <= 1e-5 * expected
        assert torch.allclose(other, source.exp() * 2)
        assert all(bool(n.isnan().all()) for n in neighbours), "a replay wrote into live memory"
    del total, other, neighbours
    graph.reset()
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert stats()["live_blocks"] == live


def out_of_memory_is_torchs_error() -> None:
    fusewire.use_torch_allocator()
    default_allocator("cuda").set_cap(64 * MIB)
    held = torch.ones(MIB, device="cuda")
    with pytest.raises(RuntimeError, match=r"cuda:0 is out of memory\..*'torch' 4 MiB"):
        torch.empty(64 * MIB, device="cuda")
    assert held.sum().item() == MIB


if __name__ == "__main__":
    globals()[sys.argv[1]]()
