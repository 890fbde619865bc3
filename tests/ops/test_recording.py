"""The parts of captured forwards: ops over a bucket of batches, and work that is captured once and
replayed on new inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.float_types import converted
from fusewire.placement import Placement

from tests import tolerance
from tests.ops.attention import (
    HEAD_DIMS,
    Attention,
    Operation,
    attend,
    make_attention,
    window,
)
from tests.ops.case import Arrays, Operands, normal
from tests.ops.rows import POOLINGS
from tests.places import GPU, TORCH_DTYPES, rounded

pytestmark = pytest.mark.parametrize("place", GPU, indirect=True)

# (lengths, tokens of the bucket, its sequences, its longest sequence)
BUCKETS = [
    ((5,), 8, 4, 32),
    ((17, 1, 40), 64, 8, 64),
    ((128,), 128, 1, 128),
    ((300, 200, 1, 12), 544, 64, 512),
    ((1,) * 33, 256, 256, 32),
    ((1500, 3), 2048, 16, 2048),
]


def bucket(place: Placement, lengths: tuple[int, ...], sizes: tuple[int, ...]) -> k.SequenceBatch:
    """Returns a batch within a bucket: missing sequences repeat the last offset."""
    tokens, sequences, longest = sizes
    offsets = np.full(sequences + 1, sum(lengths), np.int32)
    offsets[: len(lengths) + 1] = np.cumsum([0, *lengths])
    return k.SequenceBatch.bucket(place.exact(offsets, np.int32), tokens, longest)


def padded(rows: np.ndarray, tokens: int) -> np.ndarray:
    """Pads with rows of NaN to the bucket's tokens."""
    beyond = np.full((tokens - len(rows), rows.shape[1]), np.nan, np.float32)
    return np.concatenate([rows, beyond])


def allowed_attention(arrays: Arrays, shape: Attention, place: Placement) -> tolerance.Allowed:
    def reference(dtype: torch.dtype) -> np.ndarray:
        rows = {n: torch.from_numpy(a).to(place.device, dtype) for n, a in arrays.items()}
        return attend(rows, shape).double().cpu().numpy()

    truth, same = reference(torch.float64), reference(TORCH_DTYPES[place.dtype])
    return tolerance.allowed_error(truth, same, place.dtype, max(shape.keys))


@pytest.mark.parametrize("mask", [{}, window(16), {"left": 9, "right": 0}], ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_attention_over_a_bucket_sees_the_batch_alone(head_dim, mask, place):
    for lengths, *sizes in BUCKETS:
        shape, rng = Attention(lengths, 2, head_dim, **mask), np.random.default_rng(5)
        arrays = {
            name: rounded(normal(rng, sum(lengths), width), place.dtype)
            for name, width in (("q", shape.kv_width), ("kv", 2 * shape.kv_width))
        }
        allowed = allowed_attention(arrays, shape, place)
        for layout in ("dense", "strided"):
            o = Operands(place, layout)
            beyond = {name: padded(rows, sizes[0]) for name, rows in arrays.items()}
            work, out = Operation(o, beyond, shape), o.room(sizes[0], shape.kv_width)
            work.queries = work.keys = bucket(place, lengths, sizes)
            work(out)
            assert not allowed.excess(o.read(out)[: sum(lengths)]), lengths


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_cross_attention_over_buckets_sees_the_batch_alone(head_dim, place):
    shape = Attention((5, 30, 1), 2, head_dim, key_lengths=(70, 3, 20))
    arrays = {
        name: rounded(array, place.dtype)
        for name, array in make_attention(np.random.default_rng(5), shape).items()
    }
    allowed = allowed_attention(arrays, shape, place)
    o, count = Operands(place, "dense"), sum(shape.lengths)
    beyond = {**arrays, "q": padded(arrays["q"], 64), "kv": padded(arrays["kv"], 128)}
    work, out = Operation(o, beyond, shape), o.room(64, shape.kv_width)
    work.queries = bucket(place, shape.lengths, (64, 5, 32))
    work.keys = bucket(place, shape.keys, (128, 5, 96))
    work(out)
    assert not allowed.excess(o.read(out)[:count])


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_over_a_bucket_sees_the_batch_alone(kind, place):
    for lengths, *sizes in BUCKETS:
        x = normal(np.random.default_rng(6), sum(lengths), 96)
        o = Operands(place, "dense")
        exact, out = o.room(len(lengths), 96), o.room(sizes[1], 96)
        k.pool(exact, o.rows(x), o.sequences(lengths), kind, place.stream)
        batch = bucket(place, lengths, sizes)
        k.pool(out, o.rows(padded(x, sizes[0])), batch, kind, place.stream)
        got, wanted = o.read(out)[: len(lengths)], o.read(exact)
        if kind == "mean":  # equal up to the order of the sums
            allowed = tolerance.allowed_error(wanted, wanted, place.dtype, max(lengths))
            assert not allowed.excess(got), lengths
        else:
            np.testing.assert_array_equal(got, wanted, str(lengths))


def test_recorded_work_is_done_at_each_replay_on_the_inputs_of_then(place):
    rng = np.random.default_rng(8)
    o, tokens, width = Operands(place, "dense"), 64, 2 * 32
    linear = place.linear(normal(rng, 3 * width, width) / 8, normal(rng, 3 * width))
    weight = place.floats(normal(rng, width))
    x, qkv = place.empty(tokens, width), place.empty(tokens, 3 * width)
    context, out = o.room(tokens, width), o.room(tokens, width)
    offsets = place.exact(np.zeros(9), np.int32)
    batch = k.SequenceBatch.bucket(offsets, tokens, tokens)
    spec = k.AttentionSpec(heads=2, scale=32**-0.5)

    def work(of: k.SequenceBatch) -> None:
        k.linear(qkv, x, linear, "none", place.stream)
        q, key, value = (qkv.columns(i * width, width) for i in range(3))
        k.attention(context, q, key, value, of, of, spec, None, None, place.stream)
        k.layer_norm(out, context, weight, None, 1e-5, place.stream)

    def give(tensor: k.Tensor, values: np.ndarray) -> None:
        host = k.Tensor.from_numpy(converted(values, place.dtype))
        k.write(tensor, host, place.stream)

    give(x, normal(rng, tokens, width))
    work(batch)  # a first run selects kernels
    graph = k.capture(place.stream, lambda: work(batch))
    for lengths in [(64,), (3, 1, 60), (8,) * 8, (5,), (40, 2)]:
        values = normal(rng, tokens, width)
        give(x, values)
        ends = np.full(9, sum(lengths), np.int32)
        ends[: len(lengths) + 1] = np.cumsum([0, *lengths])
        k.write(offsets, k.Tensor.from_numpy(ends), place.stream)
        graph.replay(place.stream)
        replayed = place.numpy(out)[: sum(lengths)].copy()
        give(x, values)
        work(bucket(place, lengths, (tokens, 8, tokens)))
        np.testing.assert_array_equal(replayed, place.numpy(out)[: sum(lengths)])
        assert np.isfinite(replayed).all()


def all_of_another_model(place: Placement) -> list[object]:
    """Returns a stream, its memory of both kinds and work captured on it."""
    other = Placement(place.device, place.dtype)
    x = other.floats(np.ones((2, 3), np.float32))
    k.activate(x, x, "relu", other.stream)
    graph = k.capture(other.stream, lambda: k.activate(x, x, "relu", other.stream))
    graph.replay(other.stream)
    allocator = k.default_allocator(place.device)
    return [graph, allocator.allocate_uncached(1 << 20, "test", other.stream), x, other]


def test_another_model_may_end_inside_a_recording(place):
    """Python may collect it during a capture."""
    x = place.floats(np.full((2, 3), 2, np.float32))
    out = place.empty(2, 3)
    garbage = all_of_another_model(place)

    def work() -> None:
        k.activate(out, x, "relu", place.stream)
        garbage.clear()
        k.default_allocator(place.device).trim()
        k.activate(out, out, "tanh", place.stream)

    work()
    garbage = all_of_another_model(place)
    graph = k.capture(place.stream, work)
    graph.replay(place.stream)
    np.testing.assert_allclose(place.numpy(out), np.tanh(2), rtol=1e-2)


def test_an_error_inside_a_recording_leaves_the_stream_usable(place):
    x = place.floats(np.ones((2, 3), np.float32))
    out = place.empty(2, 3)

    def broken() -> None:
        k.activate(out, x, "relu", place.stream)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        k.capture(place.stream, broken)
    k.activate(out, x, "relu", place.stream)
    assert (place.numpy(out) == 1).all()
