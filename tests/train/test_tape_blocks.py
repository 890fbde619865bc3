"""Memory that forwards take one after the other: what is alive at a time is apart, and what was
large enough once does not grow."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.kernels import training as t
from hypothesis import given
from hypothesis import strategies as st

from tests.train.trained_layer import DROPOUTS, TRAINED_SPECS, TrainedLayer

KIB = 1 << 10
PAGE = 4 * KIB
# Bytes to take, or, as a fraction of those that are alive, which one to give back.
PASSES = st.lists(st.one_of(st.integers(1, 256 * KIB), st.floats(0, 1, exclude_max=True)))


def run(blocks: t.TapeBlocks, passes: list[int | float]) -> list[int]:
    """Takes and gives back as `passes` say; returns the addresses in the order of taking. Each
    block is filled with a number of its own, and still has it when it is given back."""
    addresses, alive = [], []

    def give(index: int) -> None:
        buffer, number = alive.pop(index)
        assert ctypes.string_at(buffer.data, buffer.nbytes) == bytes([number]) * buffer.nbytes
        buffer.free()

    for number, step in enumerate(passes):
        if isinstance(step, int):
            buffer = blocks.take(step)
            ctypes.memset(buffer.data, number % 256, step)
            alive.append((buffer, number % 256))
            addresses.append(buffer.data)
        elif alive:
            give(int(step * len(alive)))
    while alive:
        give(0)
    return addresses


@given(PASSES)
def test_what_is_alive_is_apart(passes: list[int | float]) -> None:
    run(t.TapeBlocks(), passes)


@given(PASSES, PASSES, PASSES)
def test_the_same_passes_find_the_same_memory_whatever_came_between(
    before: list[int | float], passes: list[int | float], between: list[int | float]
) -> None:
    blocks = t.TapeBlocks()
    for each in (before, passes, between):
        run(blocks, each)
    generation, size = blocks.generation, blocks.bytes
    first = run(blocks, passes)
    run(blocks, between)
    assert run(blocks, passes) == first
    assert (blocks.generation, blocks.bytes) == (generation, size)


@given(st.lists(st.lists(st.integers(1, 256 * KIB), max_size=4)))
def test_memory_is_that_of_the_largest_of_each_place(several: list[list[int]]) -> None:
    """Where passes are given back in the reverse order, as those of encoder and decoder are."""
    blocks = t.TapeBlocks()
    for sizes in several:
        run(blocks, [*sizes, *[1 - 2.0**-50] * len(sizes)])
    places = max(map(len, several), default=0)
    largest = [max(s[place] for s in several if place < len(s)) for place in range(places)]
    assert blocks.bytes == sum(largest)


def test_a_smaller_block_is_let_go_before_a_larger_one_is_taken() -> None:
    blocks, allocator = t.TapeBlocks(), k.default_allocator()
    before = allocator.stats()["reserved_bytes"]
    blocks.take(1 << 24).free()
    assert blocks.generation == 0
    allocator.reset_peaks()
    blocks.take(1 << 25).free()
    assert blocks.generation == 1
    assert allocator.stats()["peak_reserved_bytes"] == before + (1 << 25)
    del blocks
    assert allocator.stats()["reserved_bytes"] == before


def test_memory_that_is_not_there_is_no_block() -> None:
    blocks = t.TapeBlocks()
    first = blocks.take(PAGE)
    with pytest.raises(k.OutOfMemory, match="for 'training'"):
        blocks.take(1 << 50)
    second = blocks.take(PAGE)
    first.free()
    with pytest.raises(k.OutOfMemory):
        blocks.take(1 << 50)
    assert blocks.bytes == PAGE
    assert blocks.take(PAGE).data != second.data


def test_a_block_outlives_the_blocks() -> None:
    blocks = t.TapeBlocks()
    buffer = blocks.take(PAGE)
    del blocks
    ctypes.memset(buffer.data, 1, PAGE)
    buffer.free()


def test_threads_have_blocks_of_their_own() -> None:
    blocks = t.TapeBlocks()
    with ThreadPoolExecutor(4) as threads:
        steps = [PAGE, 0.0, 2 * PAGE, PAGE, 0.0, 0.0] * 50
        list(threads.map(lambda _: run(blocks, steps), range(8)))
    assert blocks.bytes <= 4 * 2 * (2 * PAGE)


class TestStack:
    layers = tuple(
        TrainedLayer(TRAINED_SPECS["post_norm"], lengths=(n, 5), layers=2, **DROPOUTS)
        for n in (9, 90, 40)
    )
    inputs = tuple((layer.input(1), layer.input(2)) for layer in layers)
    own = tuple(
        layer.gradients(*arrays, dropout_seed=3)
        for layer, arrays in zip(layers, inputs, strict=True)
    )

    @pytest.mark.parametrize("order", permutations(range(3)))
    def test_gradients_are_those_without_sharing(self, order: tuple[int, ...]) -> None:
        blocks = t.TapeBlocks()
        for index in order * 2:
            got = self.layers[index].gradients(*self.inputs[index], dropout_seed=3, blocks=blocks)
            assert all(map(np.array_equal, got, self.own[index]))
        assert blocks.bytes == max(layer.stack.stats()["peak_bytes"] for layer in self.layers)

    @pytest.mark.parametrize("order", permutations(range(3)))
    def test_forwards_that_wait_for_their_backward_are_not_written_to(
        self, order: tuple[int, ...]
    ) -> None:
        blocks = t.TapeBlocks()
        waiting = []
        for layer, (x, _) in zip(self.layers, self.inputs, strict=True):
            waiting.append(layer.forward_pass(x, dropout_seed=3, blocks=blocks)[1])
            # And a forward that saves nothing.
            layer.forward_pass(x, first_trained=layer.layers, blocks=blocks)
        for index in order:
            activations = waiting[index]
            assert activations is not None
            got = self.layers[index].backward_pass(activations, self.inputs[index][1])
            assert all(map(np.array_equal, got, self.own[index]))
            again = self.layers[index].gradients(*self.inputs[index], dropout_seed=3, blocks=blocks)
            assert all(map(np.array_equal, again, self.own[index]))

    def test_a_forward_that_nobody_goes_back_through_gives_its_memory_back(self) -> None:
        blocks, layer, (x, _) = t.TapeBlocks(), self.layers[0], self.inputs[0]
        for _ in range(3):
            layer.forward_pass(x, dropout_seed=3, blocks=blocks)
        assert blocks.bytes == layer.stack.stats()["peak_bytes"]

    def test_a_pass_that_fails_gives_its_memory_back(self) -> None:
        layer = TrainedLayer(TRAINED_SPECS["head_norms_rotary"])
        x, gradient = layer.input(1), layer.input(2)
        own, blocks = layer.gradients(x, gradient), t.TapeBlocks()
        positions = layer.positions
        for _ in range(3):
            layer.positions = positions[:-1]
            with pytest.raises(k.Error, match="positions"):
                layer.forward_pass(x, blocks=blocks)
            layer.positions = positions
            with out_of_memory(), pytest.raises(k.OutOfMemory):
                layer.forward_pass(x, blocks=t.TapeBlocks())
            _, activations = layer.forward_pass(x, blocks=blocks)
            assert activations is not None
            with pytest.raises(k.Error, match="written since the forward"):
                layer.backward_pass(activations, gradient, version=1)
            del activations
            got = layer.gradients(x, gradient, blocks=blocks)
            assert all(map(np.array_equal, got, own))
        assert blocks.bytes == layer.stack.stats()["peak_bytes"]


@contextmanager
def out_of_memory() -> Iterator[None]:
    k.default_allocator().set_cap(1)
    try:
        yield
    finally:
        k.default_allocator().set_cap(0)
