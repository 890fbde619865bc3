"""torch's allocator functions (core/torch_allocator.h), called as torch calls them, on a fake
device; in test_torch_memory.py torch calls them on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from tests.memory.fake_device import FakeDevice, Stats

MIB = 1 << 20


class Torch:
    """torch's side; its streams are those of the fake device."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self.native = native
        native.fusewire_torch_malloc.restype = ctypes.c_void_p
        self.device = FakeDevice(native, 64 * MIB)
        self.device.become_default()
        self.stream, self.other = self.device.create_stream(), self.device.create_stream()

    def malloc(self, size: int, stream: int | None = None) -> int:
        handle = (self.stream if stream is None else stream) + 1
        return self.native.fusewire_torch_malloc(ctypes.c_ssize_t(size), 0, ctypes.c_void_p(handle))

    def free(self, data: int) -> None:
        self.native.fusewire_torch_free(
            ctypes.c_void_p(data), ctypes.c_ssize_t(0), 0, ctypes.c_void_p(0)
        )

    def record_stream(self, data: int, stream: int) -> None:
        self.native.fusewire_torch_record_stream(ctypes.c_void_p(data), ctypes.c_void_p(stream + 1))

    def begin(self, pool: int) -> None:
        self.native.fake_torch_begin_pool(ctypes.c_uint64(pool), self.stream)

    def end(self, pool: int) -> None:
        self.native.fake_torch_end_pool(ctypes.c_uint64(pool))

    def release(self, pool: int) -> None:
        self.native.fake_torch_release_pool(ctypes.c_uint64(pool))

    def empty_cache(self) -> None:
        self.native.fusewire_torch_empty_cache()

    def stats(self) -> Stats:
        values = (ctypes.c_uint64 * len(Stats._fields))()
        self.native.fake_default_stats(values)
        return Stats(*values)

    def held_bytes(self) -> int:
        return self.stats().marks  # the tag's, see fake_default_stats


@pytest.fixture(scope="module")
def the_torch(native: ctypes.CDLL) -> Torch:
    return Torch(native)


@pytest.fixture
def torch(the_torch: Torch) -> Iterator[Torch]:
    yield the_torch
    the_torch.empty_cache()
    stats = the_torch.stats()
    assert (stats.live_blocks, stats.reserved_bytes) == (0, 0)
    the_torch.device.check()


def test_torchs_memory_is_tagged_and_reused(torch: Torch) -> None:
    data = torch.malloc(4 * MIB)
    assert torch.held_bytes() == 4 * MIB
    torch.free(data)
    assert torch.held_bytes() == 0
    assert torch.malloc(4 * MIB) == data
    torch.free(data)


def test_empty_tensors_have_memory_of_their_own(torch: Torch) -> None:
    first, second = torch.malloc(0), torch.malloc(0)
    assert first
    assert first != second
    torch.free(first)
    torch.free(second)


def test_a_pointer_of_somebody_else_is_reported_and_left_alone(
    torch: Torch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.free(4096)
    assert "torch frees 0x1000, which it did not get here" in capfd.readouterr().err
    torch.free(0)
    torch.record_stream(4096, torch.other)


def test_a_recorded_stream_is_waited_for(torch: Torch) -> None:
    data = torch.malloc(4 * MIB)
    torch.record_stream(data, torch.other)
    torch.device.use(torch.device.allocate(torch.other, 1, True), torch.other)
    torch.free(data)
    assert torch.stats().waiting_blocks == 1
    torch.device.finish(torch.other)
    assert torch.malloc(4 * MIB) == data
    torch.free(data)


def test_what_a_graph_was_captured_in_serves_nobody_else_until_it_is_released(
    torch: Torch,
) -> None:
    torch.begin(7)
    temporary = torch.malloc(4 * MIB)
    torch.free(temporary)
    assert torch.malloc(4 * MIB) == temporary, "the graph itself reuses it"
    eager = torch.malloc(4 * MIB, torch.other)
    torch.free(temporary)
    torch.end(7)
    later = torch.malloc(4 * MIB)
    assert later not in (temporary, eager)
    assert torch.stats().live_blocks == 3

    torch.begin(7)  # a second graph of the same pool
    output = torch.malloc(4 * MIB)
    assert output == temporary
    torch.end(7)
    torch.release(7)
    torch.free(output)
    assert torch.stats().live_blocks == 3, "the second graph lives"
    torch.release(7)
    assert torch.stats().live_blocks == 2
    torch.free(eager)
    torch.free(later)


def test_a_graphs_block_that_two_streams_use_is_not_reused_in_the_graph(torch: Torch) -> None:
    torch.begin(8)
    data = torch.malloc(4 * MIB)
    torch.record_stream(data, torch.other)
    torch.free(data)
    again = torch.malloc(4 * MIB)
    assert again != data
    torch.free(again)
    torch.end(8)
    torch.release(8)
    torch.device.finish(torch.other)


def test_an_output_may_outlive_its_graph(torch: Torch) -> None:
    torch.begin(9)
    output = torch.malloc(4 * MIB)
    torch.end(9)
    torch.release(9)
    assert torch.stats().live_blocks == 1
    torch.free(output)


def test_a_capture_under_way_is_not_disturbed_by_the_end_of_another_graph(torch: Torch) -> None:
    torch.begin(10)
    torch.free(torch.malloc(4 * MIB))
    torch.end(10)
    torch.begin(11)
    torch.release(10)
    assert torch.stats().live_blocks == 1, "its last replay cannot be waited for now"
    torch.end(11)
    torch.empty_cache()
    assert torch.stats().live_blocks == 0
    torch.release(11)
