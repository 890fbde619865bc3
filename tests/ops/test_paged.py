"""What decoding requires beyond each op's reference: the output of a sequence depends on it alone,
however it is batched, split over threads, chunked or paged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement

from tests import tolerance
from tests.ops.attention import BIAS_SPAN, spec_of
from tests.ops.cached_attention import ADDED, GPU_ADDED, Added, Step, make_added
from tests.ops.case import Arrays, Operands, normal
from tests.ops.paged import (
    FEW_SIMILAR,
    MANY,
    ONE_LONG,
    SIMILAR,
    Cache,
    Paged,
    attend,
    attended,
    decoding,
    make_paged,
    prompts,
)
from tests.places import CPU_TARGETS, GPU, GPU_HALVES, TORCH_DTYPES, on_gpu, rounded

FP32 = ("positions", "bias", "cos", "sin")  # fp32 in every precision
MIXED = Paged((1, 40, 1, 3, 130), (1300, 90, 7, 520, 130), heads=4, kv_heads=2, dim=32, page_size=8)


def inputs(shape: Paged, place: Placement) -> Arrays:
    arrays = make_paged(np.random.default_rng(3), shape)
    return {n: a if n in FP32 else rounded(a, place.dtype) for n, a in arrays.items()}


def allowed_error(shape: Paged, arrays: Arrays, place: Placement) -> tolerance.Allowed:
    def reference(dtype: torch.dtype) -> np.ndarray:
        moved = {n: torch.from_numpy(a).to(place.device, dtype) for n, a in arrays.items()}
        return attend(moved, shape).double().cpu().numpy()

    truth, same = reference(torch.float64), reference(TORCH_DTYPES[place.dtype])
    return tolerance.allowed_error(truth, same, place.dtype, max(shape.contexts))


def alone(shape: Paged, arrays: Arrays, sequence: int) -> tuple[Paged, Arrays, slice]:
    """Returns one sequence of a batch, and its rows."""
    ends, past_ends = np.cumsum([0, *shape.added]), np.cumsum([0, *shape.past])
    rows = slice(ends[sequence], ends[sequence + 1])
    past = slice(past_ends[sequence], past_ends[sequence + 1])
    one = shape._replace(
        added=shape.added[sequence : sequence + 1], contexts=shape.contexts[sequence : sequence + 1]
    )
    return one, {**arrays, "qkv": arrays["qkv"][rows], "past": arrays["past"][past]}, rows


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_an_answer_is_the_same_alone_and_on_other_pages(page_size: int, place: Placement):
    arrays, o = inputs(MIXED, place), Operands(place, "dense")
    together, allowed = attended(o, arrays, MIXED), allowed_error(MIXED, arrays, place)
    for sequence in range(len(MIXED.added)):
        shape, own, rows = alone(MIXED._replace(page_size=page_size), arrays, sequence)
        got = attended(o, own, shape)
        if on_gpu(place):  # a GPU may split the context of a small batch over more SMs
            assert not allowed.rows(rows).excess(got), sequence
        else:
            np.testing.assert_array_equal(got, together[rows], str(sequence))


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
def test_threads_share_a_context_without_changing_the_answer(place: Placement):
    for shape in (MIXED, decoding(5000, heads=2, kv_heads=1, dim=64)):
        arrays, before, answers = inputs(shape, place), k.num_threads(), []
        try:
            for threads in (1, 2, 3):
                k.set_num_threads(threads)
                answers.append(attended(Operands(place, "dense"), arrays, shape))
        finally:
            k.set_num_threads(before)
        assert np.array_equal(answers[0], answers[1])
        assert np.array_equal(answers[0], answers[2])


@pytest.mark.parametrize("beams", [4, 5])
@pytest.mark.parametrize(("count", "longest"), [(440, 70), (100, 600)])
@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
def test_many_rows_that_share_their_pages_get_what_each_gets_alone(
    beams: int, count: int, longest: int, place: Placement
):
    """The rows are beams of sources, more than a kernel has room for at once."""
    rng = np.random.default_rng(beams)
    sources = decoding(*rng.integers(1, longest, count // beams).tolist(), heads=8, kv_heads=8)
    arrays = inputs(sources, place)
    past = np.split(arrays["past"], np.cumsum(sources.past)[:-1])
    rows = np.arange(len(sources.added)).repeat(beams)
    contexts = [sources.contexts[row] for row in rows]
    shape = decoding(*contexts, heads=8, kv_heads=8, right=k.UNLIMITED)
    qkv = arrays["qkv"][rows]
    qkv[:, : 8 * 64] = rounded(normal(rng, len(rows), 8 * 64), place.dtype)
    o = Operands(place, "dense")
    own = {**arrays, "past": np.concatenate([past[row] for row in rows])}
    cache, out, answers = Cache(o, own, shape), o.room(len(rows), 8 * 64), []
    cache.store(o.rows(qkv))
    for table in (cache.table, cache.table[np.arange(len(rows)) // beams * beams]):
        cache.read(table)
        cache.attend(out, o.rows(qkv))
        answers.append(o.read(out).copy())
    np.testing.assert_array_equal(*answers)
    assert not allowed_error(shape, {**own, "qkv": qkv}, place).excess(answers[0])


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
@pytest.mark.parametrize("length", [129, 512, 700, 2048])
def test_beams_of_a_long_source_are_answered_on_a_gpu_whoever_is_beside_them(
    length: int, place: Placement
):
    heads, dim, size, rng = 8, 64, 16, np.random.default_rng(0)
    o = Operands(place, "dense")
    keys, values = (
        o.floats(rng.standard_normal((400, heads, size, dim)).astype(np.float32)) for _ in range(2)
    )
    pages = rng.permutation(400)[: 3 * 128].astype(np.int32).reshape(3, 128)
    last = (length - 1) // size
    pages[1, :last] = pages[0, :last]  # another source, with one different page
    of = np.repeat([0, 1, 2, 1, 0], [1, 7, 4, 9, 37])
    lengths = np.where(np.arange(len(of)) == 10, length - 1, length).astype(np.int32)
    q = rng.standard_normal((len(of), heads * dim)).astype(np.float32)

    def answers(order: np.ndarray) -> np.ndarray:
        batch = k.PagedBatch(
            o.sequences([1] * len(order)),
            k.Tensor.from_numpy(np.ascontiguousarray(lengths[order])),
            k.Tensor.from_numpy(np.ascontiguousarray(pages[of[order]])),
            size,
            place.stream,
        )
        out, spec = place.empty(*q.shape), k.AttentionSpec(heads=heads, scale=dim**-0.5)
        arguments = out, o.floats(q[order]), keys, values, batch, spec, None, None
        k.paged_attention(*arguments, place.stream)
        return place.numpy(out)

    order = rng.permutation(len(of))
    np.testing.assert_array_equal(answers(np.arange(len(of)))[order], answers(order))


@pytest.mark.parametrize(
    "options", [{}, {"left": 32}, {"soft_cap": 4.0}, {"biased": True}], ids=str
)
def test_a_prompt_in_chunks_sees_what_it_sees_whole(options: dict, place: Placement):
    shape = prompts(700, heads=4, kv_heads=2, dim=32, **options)
    arrays, o = inputs(shape, place), Operands(place, "dense")
    kv = arrays["qkv"][:, shape.heads * shape.dim :]
    got = []
    for begin, end in ((0, 1), (1, 3), (3, 130), (130, 520), (520, 521), (521, 700)):
        chunk = shape._replace(added=(end - begin,), contexts=(end,))
        own = {**arrays, "qkv": arrays["qkv"][begin:end], "past": kv[:begin]}
        got.append(attended(o, own, chunk))
    assert not allowed_error(shape, arrays, place).excess(np.concatenate(got))


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
@pytest.mark.parametrize("length", [1, 32, 33, 128])
def test_beams_of_a_source_are_answered_on_a_gpu_as_if_alone(length: int, place: Placement):
    heads, dim, size, rng = 3, 64, 16, np.random.default_rng(0)
    o = Operands(place, "dense")
    keys, values = (
        o.floats(rng.standard_normal((100, heads, size, dim)).astype(np.float32)) for _ in range(2)
    )
    pages = rng.permutation(100)[:96].astype(np.int32).reshape(3, 32)
    pages[1, 0] = pages[0, 0]  # another source with the same first page
    of = np.repeat([0, 1, 2, 1, 0], [1, 7, 4, 9, 37])
    lengths = np.where(np.arange(len(of)) == 10, max(1, length - 1), length).astype(np.int32)
    q = rng.standard_normal((len(of), heads * dim)).astype(np.float32)

    def answers(rows: slice) -> np.ndarray:
        batch = k.PagedBatch(
            o.sequences([1] * len(q[rows])),
            k.Tensor.from_numpy(np.ascontiguousarray(lengths[rows])),
            k.Tensor.from_numpy(np.ascontiguousarray(pages[of[rows]])),
            size,
            place.stream,
        )
        out, spec = place.empty(*q[rows].shape), k.AttentionSpec(heads=heads, scale=dim**-0.5)
        arguments = out, o.floats(q[rows]), keys, values, batch, spec, None, None
        k.paged_attention(*arguments, place.stream)
        return place.numpy(out)

    together = answers(slice(None))
    for row in range(len(q)):
        alone = answers(slice(row, row + 1))
        np.testing.assert_array_equal(together[row : row + 1], alone, str(row))


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize(
    "options",
    [{}, {"heads": 2, "dim": 20, "page_size": 64}, {"soft_cap": 4.0}, {"biased": True}],
    ids=str,
)
def test_beams_that_read_one_source_are_answered_as_if_alone(options: dict, place: Placement):
    shape = decoding(1, **{"heads": 4, "kv_heads": 2, "dim": 32, "right": k.UNLIMITED, **options})
    size, rng = shape.page_size, np.random.default_rng(0)
    planes = rng.standard_normal((2, 200, shape.kv_heads, size, shape.dim)).astype(np.float32)
    pages = rng.permutation(200)[:120].astype(np.int32).reshape(3, 40)
    pages[1, 0] = pages[0, 0]  # another source with the same first page
    # (beams, length, pages): few and many; a shared prefix of a source; one with a single page of
    # its own
    groups = [(1, 77, 0), (4, 33, 0), (9, 33, 1), (2, size, 1), (3, size, 0), (40, 520, 2)]
    lengths = np.repeat([length for _, length, _ in groups], [beams for beams, *_ in groups])
    table = np.concatenate([pages[[of] * beams] for beams, _, of in groups])
    q = rng.standard_normal((len(table), shape.heads * shape.dim)).astype(np.float32)
    o = Operands(place, "dense")
    keys, values = (o.floats(plane) for plane in planes)
    bias = o.floats(normal(rng, shape.heads, 2 * BIAS_SPAN - 1)) if shape.biased else None

    def answers(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        count = len(q[rows])
        batch = k.PagedBatch(
            o.sequences([1] * count),
            k.Tensor.from_numpy(lengths[rows].astype(np.int32)),
            k.Tensor.from_numpy(np.ascontiguousarray(table[rows])),
            size,
            place.stream,
        )
        out, sums = place.empty(*q[rows].shape), place.empty(shape.heads, count)
        arguments = out, o.floats(q[rows]), keys, values, batch, spec_of(shape), bias, sums
        k.paged_attention(*arguments, place.stream)
        return place.numpy(out), place.numpy(sums)

    out, sums = answers(slice(None))
    for row in range(len(q)):
        alone, its_sums = answers(slice(row, row + 1))
        np.testing.assert_array_equal(out[row : row + 1], alone, str(row))
        np.testing.assert_array_equal(sums[:, row : row + 1], its_sums, str(row))


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 4, "kv_heads": 1, "dim": 20},
        {"left": 32},
        {"left": 599, "dim": 80},
        {"soft_cap": 4.0, "biased": True},
    ],
    ids=str,
)
def test_on_a_cpu_a_piece_of_a_prompt_changes_no_bit(options: dict, place: Placement):
    shape = prompts(1100, **{"heads": 2, "kv_heads": 1, "dim": 32, **options})
    arrays, o = inputs(shape, place), Operands(place, "dense")
    whole, kv = attended(o, arrays, shape), arrays["qkv"][:, shape.heads * shape.dim :]
    rng = np.random.default_rng(1)
    for few in (1, 2, 4, 5, 9, 40, 130):  # rows, after a cached prefix of random length
        begin = int(rng.integers(600, 1100 - few))
        chunk = shape._replace(added=(few,), contexts=(begin + few,))
        own = {**arrays, "qkv": arrays["qkv"][begin : begin + few], "past": kv[:begin]}
        np.testing.assert_array_equal(attended(o, own, chunk), whole[begin : begin + few])


def test_a_broken_sequence_does_not_break_its_neighbours(place: Placement):
    arrays, o = inputs(MIXED, place), Operands(place, "dense")
    whole = attended(o, arrays, MIXED)
    _, _, rows = alone(MIXED, arrays, 1)
    broken = {**arrays, "qkv": arrays["qkv"].copy()}
    broken["qkv"][rows] = np.nan
    got = attended(o, broken, MIXED)
    assert np.isnan(got[rows]).all()
    np.testing.assert_array_equal(np.delete(got, rows, 0), np.delete(whole, rows, 0))


def test_storing_touches_no_other_row(place: Placement):
    arrays, o = inputs(MIXED, place), Operands(place, "dense")
    before, after = (Cache(o, arrays, MIXED) for _ in range(2))
    after.store(o.rows(arrays["qkv"]))
    after.new_rows()  # synchronises
    for old, new in ((before.keys, after.keys), (before.values, after.values)):
        changed = place.numpy(new).copy()
        for sequence, (past, context) in enumerate(zip(MIXED.past, MIXED.contexts, strict=True)):
            for position in range(past, context):
                changed[after.at(sequence, position)] = np.nan
        np.testing.assert_array_equal(changed, place.numpy(old))


@pytest.mark.parametrize("shape", [*ADDED, *GPU_ADDED], ids=str)
def test_a_step_at_once_is_its_parts_to_the_bit(shape: Added, place: Placement):
    if shape in GPU_ADDED and not on_gpu(place):
        pytest.skip("a size that is worth a GPU's time only")
    made = make_added(np.random.default_rng(4), shape)
    arrays = {n: a if n in FP32 else rounded(a, place.dtype) for n, a in made.items()}
    o = Operands(place, "dense")
    once, parts = Step(o, arrays, shape), Step(o, arrays, shape)
    np.testing.assert_array_equal(once.at_once(), parts.part_by_part())
    for one, other in (
        (once.cache.keys, parts.cache.keys),
        (once.cache.values, parts.cache.values),
    ):
        np.testing.assert_array_equal(place.numpy(one), place.numpy(other))


@pytest.mark.parametrize("place", GPU_HALVES, indirect=True)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_decoding_on_hopper_takes_one_kernel(dim: int, place: Placement):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("a GPU of another generation, which rotates, stores and attends by three")
    shape = Added(decoding(700, 33, heads=8, kv_heads=2, dim=dim), dim)
    step = Step(Operands(place, "dense"), make_added(np.random.default_rng(4), shape), shape)
    before = place.numpy(step.qkv).copy()
    step.at_once()
    # Separate kernels rotate it in place.
    np.testing.assert_array_equal(place.numpy(step.qkv), before)


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize(
    "shape",
    [
        decoding(900, 1, 40, heads=4, kv_heads=2),
        decoding(900, 1, 40, right=k.UNLIMITED),  # the cross attention of a decoder
        decoding(90, 1, 40, right=k.UNLIMITED),
        MANY,
        ONE_LONG,
        SIMILAR,
        FEW_SIMILAR,
        MIXED,
    ],
    ids=str,
)
def test_a_bucket_sees_the_batch_alone(shape: Paged, place: Placement):
    arrays, o = inputs(shape, place), Operands(place, "dense")
    cache = Cache(o, arrays, shape)
    rows = sum(shape.added)
    tokens, sequences = rows + 9, len(shape.added) + 3
    offsets = np.full(sequences + 1, rows, np.int32)
    offsets[: len(shape.added) + 1] = np.cumsum([0, *shape.added])
    contexts = np.full(sequences, 2**30, np.int32)  # unused sequences: must not be read
    contexts[: len(shape.contexts)] = shape.contexts
    table = np.full((sequences, cache.table.shape[1]), 2**30, np.int32)
    table[: len(cache.table)] = cache.table
    room = max(shape.contexts) + 1
    cache.batch = k.PagedBatch.bucket(
        k.SequenceBatch.bucket(place.exact(offsets, np.int32), tokens, max(shape.added)),
        place.exact(contexts, np.int32),
        place.exact(table, np.int32),
        shape.page_size,
        room,
    )
    padding = np.full((tokens - rows, shape.width), np.nan, np.float32)
    qkv = o.rows(np.concatenate([arrays["qkv"], padding]))
    out = o.room(tokens, shape.heads * shape.dim)
    cache.store(qkv)
    cache.attend(out, qkv)
    assert not allowed_error(shape, arrays, place).excess(o.read(out)[:rows])


def batch_of(contexts, table, page_size=4, added=(1, 2)) -> k.PagedBatch:
    def int32(values) -> k.Tensor:
        return k.Tensor.from_numpy(np.array(values, np.int32))

    sequences = k.SequenceBatch(int32(np.cumsum([0, *added])))
    return k.PagedBatch(sequences, int32(contexts), int32(table), page_size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, 0], [[0], [1]]), r"context_lengths\[1\]: got 0, wanted 1 to 4"),
        (([5, 2], [[0], [1]]), r"context_lengths\[0\]: got 5, wanted 1 to 4"),
        (([4, 5], [[0, 9], [1, -1]]), r"block_table\[1, 1\]: got -1, wanted a page"),
        (([1, 2, 3], [[0], [1]]), r"context_lengths: got int32\[3\] on cpu, wanted int32\[2\]"),
        (([1, 2], [0, 1]), r"block_table: got int32\[2\] on cpu, wanted int32\[2, pages\]"),
        (([1, 2], [[0], [1]], 3), "page_size: got 3, wanted a power of two"),
    ],
)
def test_a_malformed_paged_batch_is_refused(arguments: tuple, message: str):
    with pytest.raises(k.Error, match=message):
        batch_of(*arguments)


def test_a_bucket_is_for_devices_that_record():
    numbers = k.Tensor.from_numpy(np.zeros(2, np.int32))
    table = k.Tensor.from_numpy(np.zeros((1, 1), np.int32))
    with pytest.raises(k.Error, match="bucket: got one on the cpu, where nothing is recorded"):
        k.PagedBatch.bucket(k.SequenceBatch.bucket(numbers, 1, 1), numbers.first(1), table, 4, 4)
    with pytest.raises(k.Error, match="got a bucket, wanted a batch"):
        k.PagedBatch(k.SequenceBatch.bucket(numbers, 1, 1), numbers.first(1), table, 4)


def test_a_batch_that_does_not_fit_its_cache_is_refused():
    def dense(*shape: int) -> k.Tensor:
        return k.Tensor.from_numpy(np.zeros(shape, np.float32))

    cache, qkv, out = dense(3, 2, 4, 8), dense(3, 64), dense(3, 32)
    q, kv = qkv.columns(0, 32), (qkv.columns(32, 16), qkv.columns(48, 16))
    good, beyond = batch_of([3, 5], [[0, -1], [1, 2]]), batch_of([3, 5], [[0, -1], [1, 3]])
    four = k.AttentionSpec(heads=4, scale=1.0, right=0)
    with pytest.raises(
        k.Error, match="store_kv: batch: got page 3 in its table, wanted less than 3"
    ):
        k.store_kv(cache, cache, *kv, beyond, 1.0, 1.0)
    with pytest.raises(k.Error, match=r"keys: got float32\[3, 2, 4, 8\] .* page_size=8"):
        k.store_kv(cache, cache, *kv, batch_of([3, 5], [[0], [1]], 8), 1.0, 1.0)
    uncounted = batch_of([3, 1], [[0], [1]])  # it has two new tokens
    for call in (
        lambda: k.store_kv(cache, cache, *kv, uncounted, 1.0, 1.0),
        lambda: k.cached_attention(out, qkv, cache, cache, uncounted, four, None, None, None, None),
    ):
        with pytest.raises(k.Error, match="got a sequence of 1 more new tokens than its context"):
            call()
    with pytest.raises(k.Error, match=r"right: got 0, wanted at least 1: a sequence has so many"):
        k.paged_attention(out, q, cache, cache, uncounted, four, None, None)
    three = k.AttentionSpec(heads=3, scale=1.0)
    with pytest.raises(k.Error, match="heads: got 3, wanted a multiple of the keys' kv_heads 2"):
        k.paged_attention(out, q, cache, cache, good, three, None, None)
    with pytest.raises(
        k.Error, match="positions, cos and sin: got some of them, wanted all or none; give"
    ):
        k.cached_attention(out, qkv, cache, cache, good, four, None, None, dense(4, 2), dense(4, 2))


def test_a_page_outside_of_the_cache_is_not_copied():
    cache = k.Tensor.from_numpy(normal(np.random.default_rng(1), 2, 3, 1, 4))
    for pages in ((0, 3), (-1, 0)):
        source, target = (k.Tensor.from_numpy(np.array([page])) for page in pages)
        with pytest.raises(k.Error, match=r"copy_pages: page 0: got (3|-1), wanted 0 to 2"):
            k.copy_pages(cache, source, target, 4)
    for leading in (-1, 5):
        with pytest.raises(k.Error, match=rf"leading: got {leading}, wanted 0 to 4"):
            k.copy_pages(cache, target, target, leading)


@pytest.mark.parametrize("place", [*CPU_TARGETS, *GPU], indirect=True)
def test_no_page_is_copied_to_none(place: Placement):
    cache = normal(np.random.default_rng(1), 2, 3, 1, 4)
    there = place.floats(cache)
    source, target = (place.exact(np.array(pages), np.int64) for pages in ([-1, 0], [-1, 2]))
    k.copy_pages(there, source, target, 4, place.stream)
    got = place.numpy(there)
    np.testing.assert_array_equal(got[:, 2], got[:, 0])
    np.testing.assert_array_equal(got[:, :2], place.numpy(place.floats(cache))[:, :2])
