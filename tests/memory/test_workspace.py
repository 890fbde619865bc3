"""Workspace: lifetimes are recorded; the arena is reused, grows in steps and shrinks lazily."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable

import pytest
from fusewire.kernels import CachingAllocator, Error, Workspace
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20
KEY = 1  # any layer


def block(size: int) -> Callable[[object], None]:
    """Returns a forward that holds one tensor of this many bytes."""
    return lambda scratch: scratch.tensor([size], "uint8").release()


def chain(tokens: int, hidden: int = 64) -> Callable[[object], None]:
    """Returns a forward with three tensors, of which the outer two are never live together."""

    def forward(scratch: object) -> None:
        qkv = scratch.tensor([tokens, 3 * hidden])
        context = scratch.tensor([tokens, hidden])
        qkv.release()
        inner = scratch.tensor([tokens, 4 * hidden])
        context.release()
        inner.release()

    return forward


def test_a_new_key_runs_dry_first_and_then_for_real() -> None:
    workspace = Workspace(CachingAllocator())
    seen: list[tuple[bool, int]] = []

    def forward(scratch: object) -> None:
        tensor = scratch.tensor([10, 3], "int64")
        assert tensor.nbytes == 240
        seen.append((scratch.recording, tensor.address))
        tensor.release()

    workspace.run((KEY, 10, 0, 0), forward)
    workspace.run((KEY, 10, 0, 0), forward)
    workspace.run((KEY, 10, 0, 7), forward)
    assert [recording for recording, _ in seen] == [True, False, False, True, False]
    assert all((address == 0) == recording for recording, address in seen)
    assert workspace.stats()["plans_recorded"] == workspace.stats()["plans"] == 2


def test_lifetimes_are_recorded_and_their_memory_shared() -> None:
    workspace = Workspace(CachingAllocator())
    workspace.run((KEY, 16, 0, 0), chain(16))
    (program,) = workspace.programs()
    assert program["key"] == (KEY, 16, 0, 0)
    sizes = [16 * 64 * 4 * n for n in (3, 1, 4)]
    assert [size for size, _, _ in program["records"]] == sizes
    qkv, context, inner = program["records"]
    assert qkv[1] < context[1] < qkv[2] < inner[1] < context[2] < inner[2]
    assert program["peak_bytes"] == program["lower_bound_bytes"] == sizes[1] + sizes[2]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draws allocations with sizes, and releases by position among the live ones, all released at
    the end."""
    steps: list[tuple[str, int]] = []
    open_ = 0
    for _ in range(draw(st.integers(1, 20))):
        if open_ and draw(st.booleans()):
            steps.append(("release", draw(st.integers(0, open_ - 1))))
            open_ -= 1
        else:
            steps.append(("create", draw(st.integers(0, 100_000))))
            open_ += 1
    return steps + [("release", 0)] * open_


@given(programs())
@settings(max_examples=150)
def test_no_two_live_tensors_share_memory(steps: list[tuple[str, int]]) -> None:
    workspace = Workspace(CachingAllocator())

    def forward(scratch: object) -> None:
        open_: list[tuple[object, int]] = []
        for step, (what, value) in enumerate(steps):
            if what == "create":
                tensor = scratch.tensor([value], "uint8")
                if not scratch.recording:
                    assert tensor.address % 64 == 0
                    ctypes.memset(tensor.address, step + 1, value)
                open_.append((tensor, step + 1))
            else:
                tensor, pattern = open_.pop(value)
                if not scratch.recording:
                    content = ctypes.string_at(tensor.address, tensor.nbytes)
                    assert content == bytes([pattern]) * tensor.nbytes
                tensor.release()

    for _ in range(2):
        workspace.run((KEY, 0, 0, 0), forward)


def test_after_warm_up_no_run_calls_the_allocator() -> None:
    allocator = CachingAllocator()
    workspace = Workspace(allocator)
    generator = random.Random(0)
    lengths = [generator.randint(5, 500) for _ in range(150)]
    for length in lengths:
        workspace.run((KEY, length, 0, 0), chain(length, 768))
    warm, planned = allocator.stats(), workspace.stats()
    generator.shuffle(lengths)
    for length in lengths:
        workspace.run((KEY, length, 0, 0), chain(length, 768))
    assert allocator.stats() == warm
    after = workspace.stats()
    assert after.pop("runs") == planned.pop("runs") + 150
    assert after == planned
    assert planned["plans_recorded"] == len(set(lengths))
    assert planned["worst_ratio"] == 1.0


def test_the_arena_grows_in_steps_and_leaves_nothing_behind() -> None:
    allocator = CachingAllocator()
    workspace = Workspace(allocator)
    sizes = []
    for size in range(MIB // 2, 40 * MIB, MIB // 2):
        workspace.run((KEY, size, 0, 0), block(size))
        stats = allocator.stats()
        arena = workspace.stats()["arena_bytes"]
        sizes.append(arena)
        assert size <= arena <= max(2 * MIB, size * 9 / 8 + 2 * MIB)
        assert stats["reserved_bytes"] == stats["allocated_bytes"] == arena
        assert stats["holders"] == {"workspace": (arena, 1)}
    assert workspace.stats()["growths"] == len(set(sizes)) < 20
    assert allocator.stats()["peak_reserved_bytes"] == max(sizes), "never two arenas at once"


def test_the_arena_shrinks_only_after_a_whole_window_below_half() -> None:
    allocator = CachingAllocator()
    workspace = Workspace(allocator, shrink_after=10)
    large, small = block(20 * MIB), block(3 * MIB)
    workspace.run((KEY, 20, 0, 0), large)
    full = workspace.stats()["arena_bytes"]
    for _ in range(10):  # one large run in each window keeps its size
        for _ in range(9):
            workspace.run((KEY, 3, 0, 0), small)
        workspace.run((KEY, 20, 0, 0), large)
    assert (workspace.stats()["arena_bytes"], workspace.stats()["shrinks"]) == (full, 0)
    for _ in range(20):
        workspace.run((KEY, 3, 0, 0), small)
    assert (workspace.stats()["arena_bytes"], workspace.stats()["shrinks"]) == (4 * MIB, 1)
    assert allocator.stats()["reserved_bytes"] == 4 * MIB
    for _ in range(50):  # repeated runs of its own size do not change it
        workspace.run((KEY, 3, 0, 0), small)
    assert workspace.stats()["shrinks"] == 1
    workspace.run((KEY, 20, 0, 0), large)
    assert workspace.stats()["growths"] == 2


def test_use_just_above_half_keeps_the_arena() -> None:
    workspace = Workspace(CachingAllocator(), shrink_after=5)
    workspace.run((KEY, 16, 0, 0), block(16 * MIB))
    for _ in range(30):
        workspace.run((KEY, 9, 0, 0), block(9 * MIB))
    assert workspace.stats()["shrinks"] == 0


def test_plans_are_bounded_and_the_least_recently_used_leaves() -> None:
    workspace = Workspace(CachingAllocator(), max_plans=3)
    for tokens in (1, 2, 3, 1, 4, 1):
        workspace.run((KEY, tokens, 0, 0), chain(tokens))
    assert [p["key"][1] for p in workspace.programs()] == [1, 4, 3]
    stats = workspace.stats()
    assert (stats["plans"], stats["plans_recorded"]) == (3, 4)
    workspace.run((KEY, 2, 0, 0), chain(2))
    assert workspace.stats()["plans_recorded"] == 5


@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        (block(128), "asks for 128 bytes after 0 tensors"),
        (lambda scratch: None, "ends early after 0 tensors"),
        (
            lambda scratch: [block(64)(scratch) for _ in range(2)],
            "asks for 64 bytes after 1 tensors",
        ),
    ],
)
def test_a_run_that_differs_from_the_dry_one_is_refused(second: Callable, wanted: str) -> None:
    workspace = Workspace(CachingAllocator())
    workspace.run((KEY, 0, 0, 0), block(64))
    with pytest.raises(Error, match=wanted):
        workspace.run((KEY, 0, 0, 0), second)
    workspace.run((KEY, 0, 0, 0), block(64))


def test_another_order_of_releases_is_refused() -> None:
    workspace = Workspace(CachingAllocator())

    def forward(scratch: object) -> None:
        pair = [scratch.tensor([8]), scratch.tensor([8])]
        for tensor in pair if scratch.recording else reversed(pair):
            tensor.release()

    with pytest.raises(Error, match="releases tensors in another order"):
        workspace.run((KEY, 0, 0, 0), forward)


def test_a_tensor_kept_beyond_the_run_is_refused_and_dead() -> None:
    workspace = Workspace(CachingAllocator())
    kept: list[object] = []
    with pytest.raises(Error, match="got 1 tensors still held"):
        workspace.run((KEY, 0, 0, 0), lambda scratch: kept.append(scratch.tensor([8])))
    with pytest.raises(Error, match="after its run"):
        _ = kept[0].address
    workspace.run((KEY, 1, 0, 0), block(64))
    del workspace
    kept.clear()


def test_an_exception_of_forward_passes_and_the_workspace_lives_on() -> None:
    workspace = Workspace(CachingAllocator())

    def forward(scratch: object) -> None:
        scratch.tensor([8])
        if not scratch.recording:
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises((ZeroDivisionError, Error)):
            workspace.run((KEY, 0, 0, 0), forward)
    workspace.run((KEY, 1, 0, 0), chain(5))


def test_a_run_inside_a_run_is_refused() -> None:
    workspace = Workspace(CachingAllocator())
    with pytest.raises(Error, match="a run inside a run"):
        workspace.run((KEY, 0, 0, 0), lambda _: workspace.run((KEY, 1, 0, 0), block(64)))


def test_an_arena_beyond_the_cap_names_the_workspace_and_smaller_runs_go_on() -> None:
    allocator = CachingAllocator(cap_bytes=8 * MIB)
    workspace = Workspace(allocator)
    workspace.run((KEY, 1, 0, 0), block(MIB))
    before = workspace.generation
    with pytest.raises(Error, match=r"out of memory.*for 'workspace'"):
        workspace.run((KEY, 9, 0, 0), block(9 * MIB))
    assert workspace.generation != before, "the old arena is gone"
    workspace.run((KEY, 1, 0, 0), block(MIB))
    assert workspace.stats()["arena_bytes"] == 2 * MIB


def test_near_the_cap_an_arena_of_the_exact_size_still_fits() -> None:
    workspace = Workspace(CachingAllocator(cap_bytes=5 * MIB + 4096))
    workspace.run((KEY, 5, 0, 0), block(5 * MIB))
    assert workspace.stats()["arena_bytes"] == 5 * MIB


@pytest.mark.parametrize("shape", [[-1], [1 << 40, 1 << 40]])
def test_an_impossible_shape_is_named(shape: list[int]) -> None:
    workspace = Workspace(CachingAllocator())
    with pytest.raises(Error, match="shape: got"):
        workspace.run((KEY, 0, 0, 0), lambda scratch: scratch.tensor(shape))


def test_concurrent_callers_take_turns() -> None:
    workspace = Workspace(CachingAllocator())
    failures: list[str] = []

    def work(mark: int) -> None:
        def forward(scratch: object) -> None:
            tensor = scratch.tensor([50_000], "uint8")
            if not scratch.recording:
                ctypes.memset(tensor.address, mark, 50_000)
                if ctypes.string_at(tensor.address, 50_000) != bytes([mark]) * 50_000:
                    failures.append(f"thread {mark}: another run wrote into the arena")
            tensor.release()

        for _ in range(50):
            workspace.run((KEY, 0, 0, 0), forward)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert workspace.stats()["runs"] == 150


def test_the_arena_returns_with_the_workspace() -> None:
    allocator = CachingAllocator()
    workspace = Workspace(allocator)
    workspace.run((KEY, 0, 0, 0), block(5 * MIB))
    del workspace
    assert allocator.stats()["reserved_bytes"] == 0


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(Error, match="shrink_after 0"):
        Workspace(CachingAllocator(), shrink_after=0)
    with pytest.raises(Error, match="max_plans 0"):
        Workspace(CachingAllocator(), max_plans=0)
