"""Streams share memory: each reuses its own at once, and that of others when their work on it is
finished."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.memory.fake_device import FakeDevice

KIB, MIB = 1 << 10, 1 << 20
CAPACITY = 64 * MIB


@pytest.fixture
def device(native: ctypes.CDLL) -> Iterator[FakeDevice]:
    device = FakeDevice(native, CAPACITY)
    yield device
    assert device.close()


def used_and_freed(device: FakeDevice, stream: int, size: int) -> int:
    """Returns the address of a freed block that `stream` still uses."""
    block = device.allocate(stream, size, True)
    device.use(block, stream)
    address = device.address(block)
    device.free(block)
    return address


def test_a_stream_reuses_what_it_freed_without_waiting(device: FakeDevice) -> None:
    stream = device.create_stream()
    address = used_and_freed(device, stream, 4 * MIB)
    assert device.address(device.allocate(stream, 4 * MIB, True)) == address
    assert device.unfinished() == 1
    assert device.stats().marks == 0, "nothing was asked of the device"


def test_another_stream_gets_it_once_the_work_is_finished(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    address = used_and_freed(device, first, 4 * MIB)
    early = device.allocate(second, 4 * MIB, True)
    assert device.address(early) != address
    device.finish(first)
    assert device.address(device.allocate(second, 4 * MIB, True)) == address
    stats = device.stats()
    assert (stats.raw_allocations, stats.segments_adopted, stats.stream_waits) == (2, 1, 0)


def test_work_given_after_the_free_does_not_hold_it_back_once_marked(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    busy = device.allocate(first, 1 * MIB, True)
    address = used_and_freed(device, first, 4 * MIB)
    device.allocate(second, 4 * MIB, True)  # sets the mark
    device.use(busy, first)
    device.advance(first, 1)
    assert device.unfinished() == 1
    assert device.address(device.allocate(second, 4 * MIB, True)) == address


def test_a_block_used_by_another_stream_waits_for_it(device: FakeDevice) -> None:
    owner, user = device.create_stream(), device.create_stream()
    block = device.allocate(owner, 4 * MIB, True)
    address = device.address(block)
    device.use(block, user)
    device.free(block)
    stats = device.stats()
    assert (stats.waiting_blocks, stats.waiting_bytes, stats.allocated_bytes) == (1, 4 * MIB, 0)
    assert device.address(device.allocate(owner, 4 * MIB, True)) != address
    device.finish(user)
    assert device.address(device.allocate(owner, 4 * MIB, True)) == address
    assert device.stats().waiting_blocks == 0


def test_a_block_used_by_a_stream_at_rest_is_free_at_once(device: FakeDevice) -> None:
    owner, user = device.create_stream(), device.create_stream()
    block = device.allocate(owner, 4 * MIB, True)
    device.use(block, user)
    device.finish(user)
    device.free(block)
    assert device.stats().waiting_blocks == 0


def test_before_out_of_memory_streams_are_waited_for(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    used_and_freed(device, first, 48 * MIB)
    assert device.allocate(second, 60 * MIB, True) >= 0
    stats = device.stats()
    assert (stats.stream_waits, stats.raw_releases, stats.segments) == (1, 1, 1)
    assert device.allocate(second, 8 * MIB, True) == -1


def test_under_pressure_a_stream_borrows_a_piece_of_anothers_segment(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    device.free(device.allocate(first, 64 * MIB, True))
    kept = [device.allocate(first, size * MIB, True) for size in (20, 20, 24)]
    assert device.stats().segments == 1
    device.use(kept[1], first)
    address = device.address(kept[1])
    device.free(kept.pop(1))
    borrowed = device.allocate(second, 10 * MIB, True)
    assert device.address(borrowed) == address
    device.use(borrowed, second)
    device.free(borrowed)
    assert device.stats().blocks_lent == 1
    assert device.stats().waiting_blocks == 1, "its owner waits for the borrower"
    device.finish(second)
    assert device.address(device.allocate(first, 20 * MIB, True)) == address


def test_an_uncached_block_waits_for_its_streams_and_returns(device: FakeDevice) -> None:
    owner, user = device.create_stream(), device.create_stream()
    block = device.allocate(owner, 8 * MIB, False)
    device.use(block, owner)
    device.use(block, user)
    device.free(block)
    stats = device.stats()
    assert (stats.reserved_bytes, stats.waiting_blocks, stats.stream_waits) == (0, 0, 2)
    assert device.unfinished() == 0


def test_trim_returns_what_is_finished_and_does_not_wait(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    used_and_freed(device, first, 4 * MIB)
    used_and_freed(device, second, 6 * MIB)
    device.finish(second)
    assert device.trim() == 6 * MIB
    assert device.stats().stream_waits == 0
    device.finish(first)
    assert device.trim() == 4 * MIB


def test_memory_of_a_destroyed_stream_goes_to_others_and_to_the_next_one(
    device: FakeDevice,
) -> None:
    first, second = device.create_stream(), device.create_stream()
    address = used_and_freed(device, first, 4 * MIB)
    kept = device.allocate(first, 4 * MIB, True)
    assert device.address(kept) == address
    device.use(kept, first)
    device.destroy_stream(first)
    assert device.create_stream() == first, "the same handle, another stream"
    assert device.address(device.allocate(first, 4 * MIB, True)) != address
    device.free(kept)
    assert device.address(device.allocate(first, 4 * MIB, True)) != address, "not finished"
    del second


def test_streams_that_come_and_go_leave_nothing_behind(device: FakeDevice) -> None:
    for _ in range(200):
        stream = device.create_stream()
        used_and_freed(device, stream, 300 * KIB)
        device.finish(stream)
        device.destroy_stream(stream)
    stats = device.stats()
    assert (stats.segments, stats.raw_allocations, stats.marks) == (1, 1, 0)
    assert device.trim() == 2 * MIB


def test_a_captured_stream_holds_its_memory_until_it_can_answer(device: FakeDevice) -> None:
    first, second = device.create_stream(), device.create_stream()
    address = used_and_freed(device, first, 40 * MIB)
    device.set_capturing(first, True)
    assert device.allocate(second, 40 * MIB, True) == -1
    assert device.trim() == 0
    device.set_capturing(first, False)
    device.finish(first)
    assert device.address(device.allocate(second, 40 * MIB, True)) == address


SIZES = st.one_of(
    st.integers(0, 4 * KIB),
    st.integers(4 * KIB, 6 * MIB),
    st.sampled_from([256 * KIB, 256 * KIB + 1, 2 * MIB, 20 * MIB, 40 * MIB]),
)


class StreamMachine(RuleBasedStateMachine):
    """Random sequences of calls on a small device. The fake device itself reports a block that is
    allocated, or a segment that is returned, while it is live or in use elsewhere."""

    native: ctypes.CDLL

    def __init__(self) -> None:
        super().__init__()
        self.device = FakeDevice(self.native, CAPACITY)
        self.streams = [self.device.create_stream() for _ in range(3)]
        self.capturing: set[int] = set()
        self.blocks: list[int] = []

    def stream(self, which: int) -> int:
        return self.streams[which % len(self.streams)]

    @rule(which=st.integers(0, 99), size=SIZES, cached=st.integers(0, 9), used=st.booleans())
    def allocate(self, which: int, size: int, cached: int, used: bool) -> None:
        stream = self.stream(which)
        block = self.device.allocate(stream, size, cached > 0)
        if block < 0:
            assert self.blocks or self.capturing, "out of memory with everything free"
            assert self.capturing or self.device.stats().waiting_blocks == 0
            return
        self.blocks.append(block)
        if used:
            self.device.use(block, stream)

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 99), stream=st.integers(0, 99))
    def use(self, which: int, stream: int) -> None:
        self.device.use(self.blocks[which % len(self.blocks)], self.stream(stream))

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 99))
    def free(self, which: int) -> None:
        self.device.free(self.blocks.pop(which % len(self.blocks)))

    @rule(stream=st.integers(0, 99), steps=st.integers(1, 6))
    def advance(self, stream: int, steps: int) -> None:
        self.device.advance(self.stream(stream), steps)

    @rule()
    def trim(self) -> None:
        before = self.device.stats().reserved_bytes
        assert self.device.trim() == before - self.device.stats().reserved_bytes

    @rule(stream=st.integers(0, 99))
    def capture(self, stream: int) -> None:
        chosen = self.stream(stream)
        self.capturing ^= {chosen}
        self.device.set_capturing(chosen, chosen in self.capturing)

    @rule(which=st.integers(0, 99), at_once=st.booleans())
    def replace_stream(self, which: int, at_once: bool) -> None:
        stream = self.stream(which)
        if stream in self.capturing:
            return
        self.streams.remove(stream)
        self.device.destroy_stream(stream)
        self.streams.append(self.device.create_stream())

    @invariant()
    def bytes_are_conserved(self) -> None:
        stats = self.device.stats()
        assert stats.live_blocks == len(self.blocks)
        assert stats.reserved_bytes == stats.given_bytes <= CAPACITY
        assert stats.allocated_bytes + stats.waiting_bytes <= stats.reserved_bytes
        assert stats.segments == stats.raw_allocations - stats.raw_releases
        assert stats.marks <= 16, "one a stream, and those of streams that ended"

    def teardown(self) -> None:
        for stream in self.capturing:
            self.device.set_capturing(stream, False)
        for block in self.blocks:
            self.device.free(block)
        self.device.finish(*self.streams)
        # Destroyed streams with unfinished work still hold the memory that they used; nothing else
        # does.
        self.device.trim()
        assert self.device.stats().allocated_bytes == 0
        self.device.check()
        assert self.device.close()


def test_any_sequence_of_calls(native: ctypes.CDLL) -> None:
    machine = type("Machine", (StreamMachine,), {"native": native})
    machine.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
    machine.TestCase().runTest()
