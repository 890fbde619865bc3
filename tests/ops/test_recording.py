"""What recorded forwards are made of: ops over a bucket of batches, and work that is recorded once
and replayed on new inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement, converted

from tests import tolerance
from tests.ops.attention import HEAD_DIMS, attend
from tests.ops.case import Operands, normal
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
    """A batch within a bucket: the sequences that it has not repeat the last offset."""
    tokens, sequences, longest = sizes
    offsets = np.full(sequences + 1, sum(lengths), np.int32)
    offsets[: len(lengths) + 1] = np.cumsum([0, *lengths])
    return k.SequenceBatch.bucket(place.exact(offsets, np.int32), tokens, longest)


def padded(rows: np.ndarray, tokens: int) -> np.ndarray:
    """With rows of NaN up to the bucket's tokens."""
    beyond = np.full((tokens - len(rows), rows.shape[1]), np.nan, np.float32)
    return np.concatenate([rows, beyond])


def allowed_attention(qkv: np.ndarray, shape: tuple, place: Placement) -> tuple[np.ndarray, float]:
    """(the truth, the error that is granted)"""

    def reference(dtype: torch.dtype) -> np.ndarray:
        rows = torch.from_numpy(qkv).to(place.device, dtype)
        out = attend({"qkv": rows, "bias": torch.empty(1, 1, device=place.device)}, shape)
        return out.double().cpu().numpy()

    truth = reference(torch.float64)
    torch_error = np.abs(reference(TORCH_DTYPES[place.dtype]) - truth).max()
    return truth, tolerance.granted(torch_error, np.abs(truth).max(), place.dtype)


@pytest.mark.parametrize("window", [0, 16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_attention_over_a_bucket_sees_the_batch_alone(head_dim, window, place):
    heads = 2
    for lengths, *sizes in BUCKETS:
        qkv = rounded(
            normal(np.random.default_rng(5), sum(lengths), 3 * heads * head_dim), place.dtype
        )
        shape = (lengths, heads, head_dim, window, False)
        truth, allowed = allowed_attention(qkv, shape, place)
        for layout in ("dense", "strided"):
            o = Operands(place, layout)
            x, out = o.rows(padded(qkv, sizes[0])), o.room(sizes[0], heads * head_dim)
            batch = bucket(place, lengths, sizes)
            k.attention(out, x, batch, heads, head_dim**-0.5, window, None, place.stream)
            assert np.abs(o.read(out)[: sum(lengths)] - truth).max() <= allowed, lengths


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
        # Equal up to the order of the sums.
        torch_error = np.abs(wanted).max() * 2.0**-24
        granted = tolerance.granted(torch_error, np.abs(wanted).max(), place.dtype)
        assert np.abs(got - wanted).max() <= (granted if kind == "mean" else 0.0), lengths


def test_recorded_work_is_done_at_each_replay_on_the_inputs_of_then(place):
    rng = np.random.default_rng(8)
    o, tokens, width = Operands(place, "dense"), 64, 2 * 32
    linear = place.linear(normal(rng, 3 * width, width) / 8, normal(rng, 3 * width))
    weight = place.floats(normal(rng, width))
    x, qkv = place.empty(tokens, width), place.empty(tokens, 3 * width)
    context, out = o.room(tokens, width), o.room(tokens, width)
    offsets = place.exact(np.zeros(9), np.int32)
    batch = k.SequenceBatch.bucket(offsets, tokens, tokens)

    def work(of: k.SequenceBatch) -> None:
        k.linear(qkv, x, linear, "none", place.stream)
        k.attention(context, qkv, of, 2, 32**-0.5, 0, None, place.stream)
        k.add_layer_norm(out, context, x, weight, None, 1e-5, place.stream)

    def give(tensor: k.Tensor, values: np.ndarray) -> None:
        host = k.Tensor.from_numpy(converted(values, place.dtype))
        k.write(tensor, host, place.stream)

    give(x, normal(rng, tokens, width))
    work(batch)  # kernels are chosen by a first run
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
    """A stream, its memory of both kinds and work recorded on it."""
    other = Placement(place.device, place.dtype)
    x = other.floats(np.ones((2, 3), np.float32))
    k.activate(x, x, "relu", other.stream)
    graph = k.capture(other.stream, lambda: k.activate(x, x, "relu", other.stream))
    graph.replay(other.stream)
    allocator = k.default_allocator(place.device)
    return [graph, allocator.allocate_uncached(1 << 20, "test", other.stream), x, other]


def test_another_model_may_end_inside_a_recording(place):
    """As when Python collects it meanwhile."""
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
