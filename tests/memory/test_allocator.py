"""CachingAllocator: blocks never overlap, all memory is returned, the cap is obeyed, and errors
name what holds memory."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass

import pytest
from fusewire.kernels import CachingAllocator, Error, default_allocator
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.held import settled

KIB = 1 << 10
MIB = 1 << 20
ALIGNMENT = 64

# Around every boundary: a cache line, a page, the small/large limit, a segment's granularity.
SIZES = st.one_of(
    st.integers(0, 4 * KIB),
    st.sampled_from([256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 2 * MIB - 64, 2 * MIB, 2 * MIB + 1]),
    st.integers(4 * KIB, 6 * MIB),
)


def rounded(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def nothing_is_held(allocator: CachingAllocator) -> bool:
    stats = allocator.stats()
    return (
        stats["allocated_bytes"] == stats["reserved_bytes"] == 0
        and stats["live_blocks"] == stats["segments"] == 0
        and stats["raw_allocations"] == stats["raw_releases"]
        and stats["splits"] == stats["merges"]
        and stats["holders"] == {}
    )


@dataclass
class Held:
    buffer: object
    pattern: int
    tag: str

    def intact(self) -> bool:
        """Returns whether first, last and middle bytes are intact: an overlapping block writes at
        an end or over all."""
        size = self.buffer.nbytes
        edge = min(size, KIB)
        data = self.buffer.data
        middle = data + (size - edge) // 2
        return all(
            ctypes.string_at(at, edge) == bytes([self.pattern]) * edge
            for at in (data, middle, data + size - edge)
        )


class AllocatorMachine(RuleBasedStateMachine):
    """Random sequences of calls, with each live block filled with its own pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = CachingAllocator()
        self.held: list[Held] = []
        self.calls = 0
        self.cap = 0

    @rule(size=SIZES, tag=st.sampled_from(["weights", "output", "cache"]), cached=st.booleans())
    def allocate(self, size: int, tag: str, cached: bool) -> None:
        take = self.allocator.allocate if cached else self.allocator.allocate_uncached
        try:
            buffer = take(size, tag)
        except Error as error:
            if not self.cap or "the cap of" not in str(error):
                raise
            return
        self.calls += 1
        held = Held(buffer, self.calls % 251 + 1, tag)
        ctypes.memset(buffer.data, held.pattern, size)
        self.held.append(held)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 1 << 30))
    def free(self, which: int) -> None:
        held = self.held.pop(which % len(self.held))
        assert held.intact()
        held.buffer.free()

    @rule()
    def trim(self) -> None:
        before = self.allocator.stats()["reserved_bytes"]
        assert self.allocator.trim() == before - self.allocator.stats()["reserved_bytes"]

    @rule(cap=st.sampled_from([0, 0, 3 * MIB, 16 * MIB]))
    def set_cap(self, cap: int) -> None:
        self.allocator.set_cap(cap)
        # Memory above a new cap stays allocated; the other rules use the larger of the two.
        self.cap = cap and max(cap, self.allocator.stats()["reserved_bytes"])

    @invariant()
    def blocks_are_aligned_and_apart(self) -> None:
        spans = sorted((h.buffer.data, h.buffer.nbytes) for h in self.held)
        assert all(start % ALIGNMENT == 0 for start, _ in spans)
        for (start, size), (following, _) in itertools.pairwise(spans):
            assert start + max(size, 1) <= following

    @invariant()
    def statistics_add_up(self) -> None:
        stats = self.allocator.stats()
        assert stats["live_blocks"] == len(self.held)
        assert stats["allocated_bytes"] >= sum(rounded(h.buffer.nbytes) for h in self.held)
        assert stats["allocated_bytes"] == sum(bytes_ for bytes_, _ in stats["holders"].values())
        assert stats["allocated_bytes"] <= stats["reserved_bytes"] <= stats["peak_reserved_bytes"]
        assert stats["allocated_bytes"] <= stats["peak_allocated_bytes"]
        assert stats["segments"] == stats["raw_allocations"] - stats["raw_releases"]
        for tag, (_, blocks) in stats["holders"].items():
            assert blocks == sum(h.tag == tag for h in self.held)
        if self.cap:
            assert stats["reserved_bytes"] <= self.cap

    def teardown(self) -> None:
        assert all(h.intact() for h in self.held)
        self.held.clear()
        assert self.allocator.stats()["allocated_bytes"] == 0
        self.allocator.trim()
        assert nothing_is_held(self.allocator)


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnySequenceOfCalls = AllocatorMachine.TestCase


def test_a_freed_block_is_the_next_one_of_its_size() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(100_000)
    address = first.data
    first.free()
    assert allocator.allocate(100_000).data == address
    stats = allocator.stats()
    assert (stats["raw_allocations"], stats["cache_hits"]) == (1, 1)


def test_the_tightest_free_block_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size) for size in (9984, 64, 9728, 64, 9856, 64)]
    tight = blocks[4].data
    for block in blocks[::2]:
        block.free()
    assert allocator.allocate(9800).data == tight


def test_a_segment_is_split_and_merged_again_in_any_order_of_frees() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        allocator = CachingAllocator()
        blocks = [allocator.allocate(MIB // 2) for _ in range(3)]
        stats = allocator.stats()
        assert (stats["segments"], stats["splits"]) == (1, 3)
        assert [b.data - blocks[0].data for b in blocks] == [0, MIB // 2, MIB]
        for which in order:
            blocks[which].free()
        assert allocator.stats()["merges"] == 3
        whole = allocator.allocate(2 * MIB)
        assert allocator.stats()["raw_allocations"] == 1, "the merged segment serves it"
        whole.free()


def test_small_blocks_do_not_sit_in_large_segments() -> None:
    allocator = CachingAllocator()
    large = allocator.allocate(6 * MIB)
    large.free()
    small = allocator.allocate(64)
    allocator.trim()
    assert allocator.stats()["reserved_bytes"] == 2 * MIB, "the large segment could leave"
    small.free()


def test_an_uncached_block_returns_to_the_device_when_freed() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate_uncached(5 * MIB + 1)
    assert allocator.stats()["reserved_bytes"] == 5 * MIB + 4 * KIB, "whole pages, no more"
    block.free()
    assert nothing_is_held(allocator)


def test_a_block_may_outlive_its_allocator() -> None:
    allocator = CachingAllocator()
    kept, freed = allocator.allocate(10_000), allocator.allocate(10_000)
    freed.free()
    ctypes.memset(kept.data, 7, 10_000)
    del allocator
    assert ctypes.string_at(kept.data, 10_000) == b"\7" * 10_000
    kept.free()


def test_a_freed_buffer_has_no_address() -> None:
    buffer = CachingAllocator().allocate(10)
    buffer.free()
    buffer.free()
    with pytest.raises(Error, match="freed"):
        _ = buffer.data


def test_peaks_remember_and_can_be_reset() -> None:
    allocator = CachingAllocator()
    allocator.allocate(8 * MIB).free()
    assert allocator.stats()["peak_allocated_bytes"] == 8 * MIB
    allocator.trim()
    assert allocator.stats()["peak_reserved_bytes"] == 8 * MIB
    allocator.reset_peaks()
    stats = allocator.stats()
    assert stats["peak_allocated_bytes"] == stats["peak_reserved_bytes"] == 0


def test_the_cap_holds_and_the_error_names_the_largest_holders_and_the_remedy() -> None:
    allocator = CachingAllocator(cap_bytes=16 * MIB)
    held = [allocator.allocate(4 * MIB, "weights"), allocator.allocate(6 * MIB, "kv pages")]
    held += [allocator.allocate(100, "output") for _ in range(3)]
    with pytest.raises(Error) as error:
        allocator.allocate(8 * MIB, "workspace")
    message = str(error.value)
    for part in (
        "cpu is out of memory. Got a request of",
        "8 MiB (8388608 bytes) for 'workspace'",
        "the cap of 16 MiB (16777216 bytes)",
        "'kv pages' 6 MiB (6291456 bytes) in 1 block",
        "'weights' 4 MiB (4194304 bytes) in 1 block",
        "'output' 384 bytes in 3 blocks",
        "raise the cap",
    ):
        assert part in message
    assert message.index("'kv pages'") < message.index("'weights'") < message.index("'output'")
    assert allocator.stats()["reserved_bytes"] <= 16 * MIB
    held[1].free()
    allocator.allocate(8 * MIB, "workspace")


def test_what_is_cached_is_given_back_before_failing() -> None:
    allocator = CachingAllocator(cap_bytes=8 * MIB)
    for size in (6 * MIB, 8 * MIB, 7 * MIB):
        allocator.allocate(size).free()
    stats = allocator.stats()
    assert (stats["raw_allocations"], stats["raw_releases"]) == (2, 1), "8 MiB replaced 6, served 7"
    assert stats["peak_reserved_bytes"] <= 8 * MIB


def test_under_pressure_a_small_block_may_come_from_a_large_segment() -> None:
    allocator = CachingAllocator(cap_bytes=4 * MIB)
    large = allocator.allocate(3 * MIB)
    small = [allocator.allocate(64 * KIB) for _ in range(16)]
    with pytest.raises(Error):
        allocator.allocate(64 * KIB)
    assert allocator.stats()["allocated_bytes"] == 4 * MIB, "every byte of the cap is usable"
    del large, small


def test_a_lowered_cap_returns_what_is_free_and_keeps_what_is_live() -> None:
    allocator = CachingAllocator()
    live, free = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)
    free.free()
    allocator.set_cap(2 * MIB)
    assert allocator.stats()["reserved_bytes"] == 4 * MIB
    with pytest.raises(Error):
        allocator.allocate(1)
    live.free()
    assert allocator.allocate(MIB).nbytes == MIB


@pytest.mark.parametrize("size", [1 << 50, (1 << 62) + 1, (1 << 64) - 1])
def test_an_absurd_request_is_out_of_memory_not_a_crash(size: int) -> None:
    allocator = CachingAllocator()
    with pytest.raises(
        Error, match=r"cpu is out of memory\..*no cap is set.*Largest holders: none"
    ):
        allocator.allocate(size)
    with pytest.raises(Error, match="out of memory"):
        allocator.allocate_uncached(size)
    assert nothing_is_held(allocator)


def test_threads_do_not_corrupt_it() -> None:
    allocator = CachingAllocator()
    failures: list[str] = []
    start = threading.Barrier(4)

    def churn(seed: int) -> None:
        state = seed
        held: list[Held] = []
        start.wait()
        for _ in range(600):
            state = (state * 1103515245 + 12345) % (1 << 31)
            if len(held) == 12 or (held and state % 3 == 0):
                if not held[state % len(held)].intact():
                    failures.append(f"thread {seed}: a block of another thread wrote here")
                held.pop(state % len(held)).buffer.free()
            else:
                buffer = allocator.allocate(state % (MIB // 2), f"thread {seed}")
                ctypes.memset(buffer.data, seed, buffer.nbytes)
                held.append(Held(buffer, seed, f"thread {seed}"))
        for each in held:
            each.buffer.free()

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    allocator.trim()
    assert nothing_is_held(allocator)


def test_the_default_allocator_is_one_for_the_process() -> None:
    before = settled().stats()["live_blocks"]
    block = default_allocator().allocate(100, "mine")
    stats = default_allocator("cpu").stats()
    assert stats["live_blocks"] == before + 1
    assert stats["holders"]["mine"] == (128, 1)
    block.free()
    assert default_allocator().stats()["live_blocks"] == before


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:10", ""])
def test_an_unknown_device_is_named(device: str) -> None:
    with pytest.raises(Error, match=f"device: got '{device}', wanted 'cpu'"):
        CachingAllocator(device)


def test_a_small_block_beside_a_large_segment_takes_a_small_segment() -> None:
    allocator = CachingAllocator()
    held = [allocator.allocate(size) for size in (200 * MIB, 4 * KIB)]
    assert allocator.stats()["reserved_bytes"] == 202 * MIB, len(held)
