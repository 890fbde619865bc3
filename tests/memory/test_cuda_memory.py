"""A GPU's memory: the tests of the policy on a fake device, repeated on a real one."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.kernels import CachingAllocator, Error, Stream, cuda_built, default_allocator
from fusewire.placement import Placement

MIB = 1 << 20
gpu = pytest.mark.gpu


@gpu
def test_blocks_are_aligned_for_a_warp_and_counted() -> None:
    allocator = CachingAllocator("cuda")
    blocks = [allocator.allocate(size, "x") for size in (1, 513, 300_000, 3 * MIB)]
    assert all(block.data % 512 == 0 for block in blocks)
    assert allocator.stats()["allocated_bytes"] >= 512 + 1024 + 300_000 + 3 * MIB
    for block in blocks:
        block.free()
    allocator.trim()
    assert allocator.stats()["reserved_bytes"] == 0


@gpu
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(Error, match=r"got cuda:9, wanted cuda:0 to cuda:\d"):
        CachingAllocator("cuda:9")


@pytest.mark.skipif(cuda_built(), reason="this build has CUDA")
def test_a_build_without_cuda_says_so() -> None:
    with pytest.raises(Error, match="got cuda:0, wanted one this build has memory for"):
        CachingAllocator("cuda")


@gpu
def test_more_than_the_gpu_has_is_out_of_memory() -> None:
    allocator = CachingAllocator("cuda")
    with pytest.raises(Error, match=r"cuda:0 is out of memory\..*no cap is set"):
        allocator.allocate(1 << 42)
    allocator.allocate(MIB).free()


@gpu
def test_streams_share_memory_and_leave_it_behind() -> None:
    allocator = CachingAllocator("cuda")
    first, second = Stream("cuda"), Stream("cuda")
    block = allocator.allocate(4 * MIB, "x", first)
    address = block.data
    allocator.used_by(block, second)
    block.free()
    block = allocator.allocate(4 * MIB, "x", second)  # no work is pending on either stream
    assert block.data == address
    assert allocator.stats()["segments_adopted"] == 1
    del first, second
    block.free()
    third = Stream("cuda")
    assert allocator.allocate(4 * MIB, "x", third).data == address


@gpu
def test_weights_that_were_announced_come_in_one_piece() -> None:
    place = Placement("cuda", "float16")
    # 4.5 MiB: without the reservation the ends of segments of 16 MiB would stay unused.
    matrix = np.ones((1, 9 * MIB // 4), np.float32)
    default_allocator("cuda").trim()
    before = default_allocator("cuda").stats()["raw_allocations"]
    place.reserve(40 * matrix.size, "weights")
    held = [place.floats(matrix) for _ in range(40)]
    assert default_allocator("cuda").stats()["raw_allocations"] == before + 1
    assert len(held) == 40
