"""Guarantees of attention beyond its reference: the log-sum-exp, the same mask in all kernels,
beams over one source, and an error for what no kernel of the target supports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests import tolerance
from tests.ops import paged
from tests.ops.attention import (
    ATTENTIONS,
    CAUSAL,
    Attention,
    Operation,
    attend,
    attended,
    log_sum_exps,
    make_attention,
    masked_scores,
)
from tests.ops.case import Arrays, Operands, Tensors, normal
from tests.ops.check import longest
from tests.ops.paged import PAGED, Cache, Paged, decoding, make_paged, prompts
from tests.places import CPU_TARGETS, EVERYWHERE, GPU, TORCH_DTYPES, on_gpu, rounded

DROPPED = k.AttentionSpec(heads=1, scale=1.0, dropout=0.1, dropout_seed=7)


def inputs(made: Arrays, place: Placement) -> Arrays:
    return {n: a if n == "bias" else rounded(a, place.dtype) for n, a in made.items()}


def tensors(arrays: Arrays, dtype: torch.dtype, place: Placement) -> Tensors:
    return {n: torch.from_numpy(a).to(place.device, dtype) for n, a in arrays.items()}


def expect_equal(got: np.ndarray, reference, arrays: Arrays, place: Placement) -> None:
    truth = reference(tensors(arrays, torch.float64, place)).cpu().numpy()
    same = reference(tensors(arrays, TORCH_DTYPES[place.dtype], place)).double().cpu().numpy()
    excess = tolerance.allowed_error(truth, same, place.dtype, longest(arrays)).excess(got)
    assert not excess, excess


@pytest.mark.parametrize("shape", ATTENTIONS, ids=str)
def test_the_log_sum_exp_of_packed_attention(shape: Attention, place: Placement):
    arrays = inputs(make_attention(np.random.default_rng(0), shape), place)
    o = Operands(place, "dense")
    queries = sum(shape.lengths)
    out, sums = (
        o.room(queries, shape.heads * shape.dim),
        k.empty([shape.heads, queries], stream=place.stream),
    )
    Operation(o, arrays, shape)(out, sums)
    place.stream.synchronize()
    got = k.download(sums, place.stream).numpy()
    expect_equal(got, lambda t: log_sum_exps(t, shape), arrays, place)
    # Requesting it changes the other results on a GPU only, by the order of a sum.
    if not on_gpu(place):
        np.testing.assert_array_equal(o.read(out), attended(o, arrays, shape))


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("shape", PAGED, ids=str)
def test_the_log_sum_exp_of_paged_attention(shape: Paged, place: Placement):
    arrays = inputs(make_paged(np.random.default_rng(0), shape), place)
    o = Operands(place, "dense")
    cache, qkv = Cache(o, arrays, shape), o.rows(arrays["qkv"])
    out, sums = (
        o.room(sum(shape.added), shape.heads * shape.dim),
        o.room(shape.heads, sum(shape.added)),
    )
    cache.store(qkv)
    cache.attend(out, qkv, sums)

    def reference(t: Tensors) -> torch.Tensor:
        scores = [
            masked_scores(q, key, shape, t["bias"]) for q, key, _ in paged.sequences(t, shape)
        ]
        return torch.cat([each.logsumexp(-1) for each in scores], 1)

    expect_equal(o.read(sums), reference, arrays, place)


@pytest.mark.parametrize(
    "options",
    [CAUSAL, {"left": 5, "right": 0}, {"left": 40, "right": 9}, {"soft_cap": 3.0, "biased": True}],
    ids=str,
)
def test_a_mask_means_the_same_over_packed_keys_and_over_pages(options: dict, place: Placement):
    lengths, heads, kv_heads, dim = (1, 90, 33), 4, 2, 64
    packed = Attention(lengths, heads, dim, kv_heads, **options)
    in_pages = prompts(*lengths, heads=heads, kv_heads=kv_heads, dim=dim, **packed_mask(packed))
    made = make_attention(np.random.default_rng(3), packed)
    arrays = inputs(made, place)
    qkv = np.concatenate([arrays["q"], arrays["kv"]], 1)
    paged_arrays = {"qkv": qkv, "past": qkv[:0, heads * dim :], "bias": arrays["bias"]}
    o = Operands(place, "dense")
    for got in (attended(o, arrays, packed), paged.attended(o, paged_arrays, in_pages)):
        expect_equal(got, lambda t: paged.attend(t, in_pages), paged_arrays, place)


def packed_mask(shape: Attention) -> dict:
    return {name: getattr(shape, name) for name in ("left", "right", "soft_cap", "biased")}


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_beams_see_all_of_one_source_in_pages(dim: int, place: Placement):
    """The beams are new tokens of the source's sequence, which may be shorter than the number of
    beams."""
    beams, sources, heads = 5, (70, 3, 1, 33), 4
    rng = np.random.default_rng(4)
    packed = Attention((beams,) * len(sources), heads, dim, 2, key_lengths=sources)
    arrays = inputs(make_attention(rng, packed), place)
    stored = prompts(*sources, heads=heads, kv_heads=2, dim=dim)
    kv_width = 2 * packed.kv_width
    no_queries = np.zeros((sum(sources), heads * dim), np.float32)
    qkv = np.concatenate([no_queries, arrays["kv"]], 1)
    o = Operands(place, "dense")
    cache = Cache(o, {"qkv": qkv, "past": qkv[:0, -kv_width:]}, stored)
    cache.store(o.rows(qkv))
    batch = k.PagedBatch(
        o.sequences(packed.lengths),
        k.Tensor.from_numpy(np.array(sources, np.int32)),
        k.Tensor.from_numpy(cache.table),
        stored.page_size,
        place.stream,
    )
    out = o.room(beams * len(sources), heads * dim)
    spec = k.AttentionSpec(heads=heads, scale=dim**-0.5)
    q = o.rows(arrays["q"])
    k.paged_attention(out, q, cache.keys, cache.values, batch, spec, None, None, place.stream)
    expect_equal(o.read(out), lambda t: attend(t, packed), arrays, place)


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_queries_keys_and_values_may_lie_in_matrices_of_their_own(dim: int, place: Placement):
    shape = Attention((70, 1, 300), 4, dim, 2)
    arrays = inputs(make_attention(np.random.default_rng(5), shape), place)
    o = Operands(place, "strided")
    work, out = Operation(o, arrays, shape), o.room(sum(shape.lengths), shape.heads * dim)
    key, value = arrays["kv"][:, : shape.kv_width], arrays["kv"][:, shape.kv_width :]
    work.q, work.k, work.v = o.rows(arrays["q"]), o.rows(key.copy()), o.rows(value.copy())
    work(out)
    expect_equal(o.read(out), lambda t: attend(t, shape), arrays, place)


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_what_no_gpu_kernel_does_is_refused_by_name(place: Placement):
    o = Operands(place, "dense")
    wide = place.empty(2, 264)
    spec, batch = k.AttentionSpec(heads=1, scale=1.0), o.sequences((2,))
    with pytest.raises(k.Error, match="got a head_dim of more than 256, which no kernel of target"):
        k.attention(wide, wide, wide, wide, batch, batch, spec, None, None, place.stream)
    shape = decoding(5)
    cache = Cache(o, inputs(make_paged(np.random.default_rng(0), shape), place), shape)
    qkv, sums = place.empty(1, shape.width), place.exact(np.zeros((2, 1)), np.float32)
    with pytest.raises(k.Error, match="got log_sum_exp over pages, which no kernel of target cuda"):
        cache.attend(place.empty(1, 128), qkv, sums)


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_dropout_over_pages_is_refused_by_name(place: Placement):
    o, shape = Operands(place, "dense"), decoding(5, heads=1, kv_heads=1)
    cache = Cache(o, inputs(make_paged(np.random.default_rng(0), shape), place), shape)
    out, qkv = place.empty(1, shape.dim), place.empty(1, shape.width)
    q = qkv.columns(0, shape.dim)
    target = "cuda" if on_gpu(place) else k.cpu_target()
    message = f"got dropout over pages, which no kernel of target {target} does"
    with pytest.raises(k.Error, match=message):
        k.paged_attention(
            out, q, cache.keys, cache.values, cache.batch, DROPPED, None, None, place.stream
        )


def dense(*shape: int) -> k.Tensor:
    return k.Tensor.from_numpy(normal(np.random.default_rng(7), *shape))


def batch_of(*lengths: int) -> k.SequenceBatch:
    return k.SequenceBatch(k.Tensor.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "attention: heads: got 3, wanted a divisor of q's width 32"),
        ({"heads": 0}, "attention: heads: got 0, wanted a divisor of q's width 32"),
        ({"left": -1}, "attention: left: got -1, wanted 0 or more, or UNLIMITED"),
        ({"right": -2}, "attention: right: got -2, wanted 0 or more, or UNLIMITED"),
        ({"right": 1}, "attention: right: got 1, wanted at least 3: a sequence has so many"),
        ({"soft_cap": -1.0}, r"attention: soft_cap: got -1, wanted 0 \(none\) or more"),
        ({"dropout": 1.0}, r"attention: dropout: got 1, wanted 0 \(none\) or more, and less"),
    ],
    ids=str,
)
def test_a_specification_that_makes_no_sense_is_refused(options: dict, message: str):
    """The batch has two sequences, the second of which has 4 queries and 1 key."""
    q, kv, out = dense(6, 32), dense(4, 32), dense(6, 32)
    spec = k.AttentionSpec(**{"heads": 2, "scale": 1.0, **options})
    with pytest.raises(k.Error, match=message):
        k.attention(out, q, kv, kv, batch_of(2, 4), batch_of(3, 1), spec, None, None)


def test_tensors_that_do_not_fit_one_another_are_refused():
    q, kv, out = dense(6, 32), dense(4, 32), dense(6, 32)
    queries, keys = batch_of(2, 4), batch_of(3, 1)
    spec = k.AttentionSpec(heads=4, scale=1.0)
    with pytest.raises(k.Error, match="keys: got 1 sequences, wanted 2, as many as queries"):
        k.attention(out, q, kv, kv, queries, batch_of(4), spec, None, None)
    with pytest.raises(k.Error, match=r"v: got float32\[4, 16\] on cpu, wanted .*kv_heads .*=32"):
        k.attention(out, q, kv, dense(4, 16), queries, keys, spec, None, None)
    for width, wanted in ((12, "a multiple of q's head_dim 8"), (24, "of the keys' kv_heads 3")):
        narrow = kv.columns(0, width)
        with pytest.raises(k.Error, match=wanted):
            k.attention(out, q, narrow, narrow, queries, keys, spec, None, None)
    with pytest.raises(k.Error, match=r"bias: got width 8, wanted 2 L - 1"):
        k.attention(out, q, kv, kv, queries, keys, spec, dense(4, 8), None)
    with pytest.raises(k.Error, match=r"log_sum_exp: got float32\[6, 4\] on cpu, wanted .*heads=4"):
        k.attention(out, q, kv, kv, queries, keys, spec, None, dense(6, 4))
