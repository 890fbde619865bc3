"""Guarantees of attention's backward pass beyond its reference: bitwise equal results in every run
and on any number of threads, no influence between sequences, and errors by name."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.attention import CAUSAL, Attention, window
from tests.ops.attention_backward import CASES, Backward, gradients, make_gradients
from tests.ops.attention_backward import SHAPES as ALL_SHAPES
from tests.ops.case import Operands
from tests.ops.check import check
from tests.places import CPU_TARGETS, EVERYWHERE, GPU

EVERY_TARGET = pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
ON_EVERY_PLACE = pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
ON_GPU = pytest.mark.parametrize("place", GPU, indirect=True)

SHAPES = [
    Attention((5, 300, 40, 1), 3, 64, biased=True, dropout=0.1),
    Attention((200, 33), 4, 32, kv_heads=2, **CAUSAL),
    Attention((700,), 4, 64, kv_heads=1, left=200, right=0),  # one head of k and v: few tasks
    Attention((40, 3), 2, 20, key_lengths=(300, 7)),
]


@EVERY_TARGET
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_threads_or_on_the_run(shape: Attention, place: Placement):
    arrays, before = make_gradients(np.random.default_rng(1), shape), k.num_threads()
    o = Operands(place, "dense")
    wanted = gradients(o, arrays, shape)
    try:
        for threads in (1, 2, 3, 7):
            k.set_num_threads(threads)
            work = Backward(o, arrays, shape)
            first, again = work.results(), work.results()
            for one, other in zip(first, again, strict=True):
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(gradients(o, arrays, shape), wanted)
    finally:
        k.set_num_threads(before)


# Sequences of at most 64 tokens, 40 on average, which a block of a GPU holds as a whole.
SHORT = [
    Attention((28, 1, 17, 33, 64, 16, 40), 3, 64, **CAUSAL),
    Attention((28, 30, 5), 2, 64, dropout=0.1),
    Attention((20, 31, 9), 2, 64, key_lengths=(30, 64, 7), dropout=0.2),
    Attention((20, 31, 9), 2, 64, key_lengths=(30, 64, 12), **CAUSAL),
    Attention((60, 33, 7), 4, 32, **window(9)),
    Attention((16, 30, 2), 3, 40, dropout=0.3),
    Attention((30, 20, 9), 4, 64, kv_heads=2, dropout=0.1),
    Attention((30, 20), 2, 64, soft_cap=3.0, dropout=0.1),
]
# Lengths around the tiles of a GPU's kernels, and features with separate code paths. On Hopper,
# head_dim 64 and 128 have wgmma kernels for aligned rows ("dense", "strided"); unaligned rows use
# the kernels of all GPUs ("unaligned").
AROUND_TILES = (1, 63, 64, 65, 127, 128, 129, 500)
GPU_SHAPES = [
    Attention(AROUND_TILES, 2, 64, **CAUSAL),
    Attention(AROUND_TILES, 2, 64, dropout=0.1),
    Attention(AROUND_TILES, 2, 128, **CAUSAL),
    Attention((1030, 3), 4, 64, kv_heads=1, dropout=0.1, **CAUSAL),
    Attention((257, 3, 31, 64), 4, 128, kv_heads=2, dropout=0.1),
    Attention((700, 5), 2, 64, left=100, right=0),
    Attention((70, 300, 9), 4, 64, kv_heads=2, key_lengths=(300, 70, 200)),
    Attention((200, 70, 9), 2, 64, key_lengths=(300, 90, 200), **CAUSAL),
    Attention((150, 64), 2, 128, key_lengths=(64, 300), dropout=0.2),
    Attention((64, 65, 63, 1, 128, 200), 3, 64),
    Attention((260, 31), 2, 64, dropout=0.1, **CAUSAL),
    Attention((130, 64), 6, 128, kv_heads=2, **CAUSAL),
    Attention((150,), 4, 40, kv_heads=1, dropout=0.3, left=50, right=20),
    Attention((300, 17), 2, 64),
    Attention((600, 70), 2, 128),
    Attention((200, 31), 2, 128),
    Attention((70, 300), 2, 256),
    Attention((33, 190), 3, 72, key_lengths=(140, 64), dropout=0.2),
    Attention((2, 3) * 40, 2, 64),
    Attention((64, 129), 2, 96, soft_cap=3.0, dropout=0.1),
    *SHORT,
]
# Distances within a table and far beyond its ends, in tiles that contain both.
BIASED = [
    Attention((1, 31, 32, 33, 65), 3, 64, biased=True),
    Attention((700, 5), 2, 64, biased=True, **CAUSAL),
    Attention((400,), 4, 32, kv_heads=2, biased=True, dropout=0.2, **window(40)),
    Attention((90, 3), 2, 128, key_lengths=(600, 64), biased=True, soft_cap=3.0),
    Attention((70,), 2, 200, biased=True),
    Attention((2, 3) * 40, 5, 16, biased=True),
]


@ON_GPU
@pytest.mark.parametrize("shape", [*ALL_SHAPES, *GPU_SHAPES, *BIASED], ids=str)
def test_gradients_on_a_gpu_equal_their_reference(shape: Attention, place: Placement):
    check(CASES["attention_backward"], shape, place)


@ON_GPU
@pytest.mark.parametrize("shape", [*SHAPES, *GPU_SHAPES, *BIASED], ids=str)
def test_bits_on_a_gpu_do_not_depend_on_the_run(shape: Attention, place: Placement):
    work = Backward(
        Operands(place, "dense"), make_gradients(np.random.default_rng(1), shape), shape
    )
    wanted = work.results()
    for _ in range(5):
        for one, other in zip(work.results(), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@ON_GPU
@pytest.mark.parametrize("shape", [s for s in SHAPES + BIASED if s.biased], ids=str)
def test_gradients_on_a_gpu_are_the_same_where_that_of_the_bias_is_not_wanted(
    shape: Attention, place: Placement
):
    """Tensor core kernels compute them in that case."""
    arrays = make_gradients(np.random.default_rng(1), shape)
    work = Backward(Operands(place, "dense"), arrays, shape)
    *wanted, _ = work.results()
    work.dbias = None
    for one, other in zip(work.results(), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max())


@ON_EVERY_PLACE
def test_gradients_of_a_sequence_are_its_own(place: Placement):
    """A sequence alone has the same gradients, and a sequence of NaN does not change its
    neighbours'."""
    shape = Attention((17, 140, 64, 1), 2, 64)
    arrays = make_gradients(np.random.default_rng(2), shape)
    o, rows = Operands(place, "dense"), np.s_[17:157]
    whole = gradients(o, arrays, shape)
    alone = {name: a[rows] if len(a) == len(whole) else a for name, a in arrays.items()}
    np.testing.assert_array_equal(gradients(o, alone, Attention((140,), 2, 64)), whole[rows])
    for name in ("q", "kv", "dout"):
        broken = {**arrays, name: arrays[name].copy()}
        broken[name][rows] = np.nan
        got = gradients(o, broken, shape)
        assert np.isnan(got[rows]).any()
        np.testing.assert_array_equal(np.delete(got, rows, 0), np.delete(whole, rows, 0))


@ON_EVERY_PLACE
def test_keys_that_no_query_sees_have_no_gradient(place: Placement):
    shape = Attention((3,), 2, 32, key_lengths=(400,), left=9, right=0)
    arrays = make_gradients(np.random.default_rng(3), shape)
    _, dkv = Backward(Operands(place, "dense"), arrays, shape).results()
    assert (dkv[: 400 - 3 - 9] == 0).all()
    assert (dkv[400 - 3 - 9 :] != 0).any(1).all()


def dense(*shape: int) -> k.Tensor:
    return k.Tensor.from_numpy(np.zeros(shape, np.float32))


def test_arguments_that_do_not_fit_one_another_are_refused():
    batch = k.SequenceBatch(k.Tensor.from_numpy(np.array([0, 2, 6], np.int32)))
    spec = k.AttentionSpec(heads=2, scale=1.0)
    rows, sums = dense(6, 32), dense(2, 6)

    def backward(dk=rows, dbias=None, dout=rows, bias=None, sums=sums):
        k.attention_backward(
            rows, dk, rows, dbias, dout, rows, rows, rows, rows, batch, batch, spec, bias, sums
        )

    backward()
    for wrong, message in (
        ({"dk": dense(6, 16)}, r"dk: got float32\[6, 16\] on cpu, wanted .*kv_heads .*=32"),
        ({"dout": dense(5, 32)}, r"dout: got float32\[5, 32\] on cpu, wanted .*queries=6"),
        ({"dbias": dense(2, 9)}, "dbias: got one without bias; give bias, or no dbias"),
        ({"dbias": dense(2, 7), "bias": dense(2, 9)}, r"dbias: got float32\[2, 7\].* 2 L - 1=9"),
        ({"sums": dense(6, 2)}, r"log_sum_exp: got float32\[6, 2\] on cpu, wanted .*heads=2"),
    ):
        with pytest.raises(k.Error, match=f"attention_backward: {message}"):
            backward(**wrong)
