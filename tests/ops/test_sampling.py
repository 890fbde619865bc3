"""Random sampling: it keeps the tokens of transformers' warpers, with their probabilities, is
independent of the batch, and uses Philox random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from fusewire.placement import Placement
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from tests.ops.case import Operands
from tests.ops.philox import halves, philox
from tests.ops.sampling import draw
from tests.places import CPU, CPU_TARGETS, rounded

# Correct sampling exceeds this many deviations of chi-square in fewer than one of 10^8 runs.
DEVIATIONS = 7.0


def warped(logits: np.ndarray, given: dict) -> np.ndarray:
    """Returns the probabilities of one row by transformers' warpers, in its order, in fp64."""
    warpers = [
        hf.TemperatureLogitsWarper(float(given.get("temperature", 1.0))),
        hf.TopKLogitsWarper(int(given["top_k"])) if given.get("top_k") else None,
        hf.TopPLogitsWarper(given["top_p"]) if given.get("top_p", 1) < 1 else None,
        hf.MinPLogitsWarper(given["min_p"]) if given.get("min_p") else None,
        hf.TypicalLogitsWarper(given["typical_p"]) if given.get("typical_p", 1) < 1 else None,
    ]
    scores = torch.from_numpy(logits).double()[None]
    for warper in filter(None, warpers):
        scores = warper(None, scores)
    return scores.softmax(-1)[0].numpy()


def drawn_counts(place: Placement, logits: np.ndarray, draws: int, given: dict) -> np.ndarray:
    """Returns how often each token is drawn in `draws` steps."""
    o, rows = Operands(place, "dense"), 20000
    x = o.rows(np.ascontiguousarray(np.broadcast_to(logits, (rows, len(logits)))))
    counts = np.zeros(len(logits), np.int64)
    for begin in range(0, draws, rows):
        tokens = draw(o, x, seeds=11, steps=np.arange(begin, begin + rows), **given)
        counts += np.bincount(tokens, minlength=len(logits))
    return counts


def distinct(rng: np.random.Generator, vocab: int, spread: float, dtype: str) -> np.ndarray:
    """Returns logits in random order, all different in the element type."""
    steps = np.linspace(0, spread, vocab) + rng.uniform(0, 0.2 * spread / vocab, vocab)
    logits = rounded(rng.permutation(steps).astype(np.float32), dtype)
    assert len(np.unique(logits)) == vocab
    return logits


COMBINATIONS = [
    {},
    {"temperature": 0.6},
    {"temperature": 3.0},
    {"top_k": 7},
    {"top_k": 1},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.93},
    {"top_p": 0.01},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"typical_p": 0.4},
    {"typical_p": 0.95},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.3},
    {"top_k": 25, "typical_p": 0.6},
    {"temperature": 1.3, "top_k": 33, "top_p": 0.95, "min_p": 0.15, "typical_p": 0.7},
]


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_tokens_come_as_often_as_transformers_says(combination: dict, place: Placement):
    logits = distinct(np.random.default_rng(0), 40, 3.0, place.dtype)
    wanted = warped(logits, combination)
    counts = drawn_counts(place, logits, 100_000, combination)
    # Each possible token is expected dozens of times, so the sets are equal.
    assert (wanted[wanted > 0] * counts.sum() > 40).all()
    np.testing.assert_array_equal(counts > 0, wanted > 0)
    expected = wanted[wanted > 0] * counts.sum()
    chi_square = ((counts[wanted > 0] - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert chi_square <= freedom + DEVIATIONS * np.sqrt(2 * freedom) + DEVIATIONS**2 / 2


def test_a_wrong_distribution_would_be_noticed(place: Placement):
    """The chi-square test above distinguishes a temperature of 1.05 from 1."""
    logits = distinct(np.random.default_rng(0), 40, 3.0, place.dtype)
    counts = drawn_counts(place, logits, 100_000, {"temperature": 1.05})
    expected = warped(logits, {}) * counts.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square > 39 + DEVIATIONS * np.sqrt(2 * 39) + DEVIATIONS**2 / 2


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@hypothesis_settings(max_examples=150)
@given(
    vocab=st.integers(1, 700),
    scale=st.floats(0.01, 20),
    forbidden=st.floats(0, 0.9),
    seed=st.integers(0, 2**32 - 1),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 800),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1)),
    typical_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
)
def test_any_combination_leaves_what_transformers_leaves(
    place, vocab, scale, forbidden, seed, **combination
):
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(vocab) * scale).astype(np.float32)
    logits[rng.random(vocab) < forbidden] = -np.inf
    assume(np.isfinite(logits).any())
    wanted = warped(logits, combination)
    for name in ("top_p", "min_p", "typical_p"):  # excludes cases that rounding decides
        for by in (1 - 1e-4, 1 + 1e-4):
            moved = {**combination, name: min(combination[name] * by, 1.0)}
            assume(((warped(logits, moved) > 0) == (wanted > 0)).all())
    o, draws = Operands(place, "dense"), 4000
    x = np.ascontiguousarray(np.broadcast_to(logits, (draws, vocab)))
    counts = np.bincount(draw(o, x, steps=np.arange(draws), **combination), minlength=vocab)
    assert (wanted[counts > 0] > 0).all()
    assert (counts[wanted * draws > 40] > 0).all()


@pytest.mark.parametrize("vocab", [50257, 128256])
@pytest.mark.parametrize(("top_k", "share"), [(20, 1.0), (0, 20.5), (20000, 20.5)])
def test_a_real_vocabulary_is_cut_at_the_same_place(vocab, top_k, share, place: Placement):
    """All remaining tokens have similar probabilities, so some hundred draws include all of
    them."""
    rng, rows = np.random.default_rng(vocab), 64
    logits = rounded((rng.standard_normal(vocab) * 2).astype(np.float32), place.dtype)
    given = {"temperature": 100.0, "top_k": top_k, "top_p": min(share / (top_k or vocab), 1.0)}
    if share == 1.0:
        given["top_p"] = 1.0
    stay = warped(logits, given) > 0
    border = logits[stay].min()  # top_p keeps only some of the logits equal to this one
    o = Operands(place, "dense")
    x = o.rows(np.tile(logits, (rows, 1)))
    tokens = np.concatenate(
        [draw(o, x, steps=np.arange(i * rows, (i + 1) * rows), **given) for i in range(10)]
    )
    assert (logits[tokens] >= border).all()
    assert set(np.flatnonzero(stay & (logits > border))) <= set(tokens)
    assert border in logits[tokens]


def test_the_reference_of_philox_gives_the_published_words():
    assert philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(0, (0, 0, 0, 0), 7) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
    key, counter = 0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox(key, counter) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
def test_the_random_number_is_philox_of_seed_and_step(place: Placement):
    rng, vocab, rows = np.random.default_rng(3), 4096, 500
    seeds = rng.integers(-(2**63), 2**63 - 1, rows)
    steps = rng.integers(0, 2**63 - 1, rows)
    steps[:100] = np.arange(100)
    got = draw(
        Operands(place, "dense"), np.zeros((rows, vocab), np.float32), seeds=seeds, steps=steps
    )
    first, second, *_ = philox(seeds, (*halves(steps), 0, 0))
    uniform = ((second << np.uint64(32) | first) >> np.uint64(11)) / 2**53
    np.testing.assert_array_equal(got, (uniform * vocab).astype(int))


def test_a_draw_does_not_depend_on_the_rest_of_the_batch(place: Placement):
    rng, vocab = np.random.default_rng(4), 5003
    logits = rounded((rng.standard_normal((6, vocab)) * 3).astype(np.float32), place.dtype)
    each = {
        "temperature": np.array([1.0, 0.0, 0.7, 2.0, 1.0, 1.0]),
        "top_k": np.array([0, 0, 40, 0, 3000, 0]),
        "top_p": np.array([1.0, 1.0, 0.9, 0.8, 1.0, 0.95]),
        "min_p": np.array([0.0, 0.0, 0.01, 0.0, 0.001, 0.0]),
        "typical_p": np.array([1.0, 1.0, 1.0, 1.0, 0.9, 0.5]),
        "seeds": np.arange(6),
    }
    for step in range(5):
        together = draw(Operands(place, "dense"), logits, steps=step, **each)
        for order in (np.arange(6)[::-1], np.array([3]), np.tile(np.arange(6), 7)):
            given = {name: value[order] for name, value in each.items()}
            for layout in ("dense", "strided"):
                got = draw(
                    Operands(place, layout),
                    np.ascontiguousarray(logits[order]),
                    steps=step,
                    **given,
                )
                np.testing.assert_array_equal(got, together[order])


def test_a_draw_does_not_depend_on_the_threads():
    logits = np.random.default_rng(5).standard_normal((9, 3001)).astype(np.float32)
    o, usual = Operands(Placement("cpu"), "dense"), k.num_threads()
    try:
        got = []
        for threads in (1, 2):
            k.set_num_threads(threads)
            got.append(draw(o, logits, seeds=np.arange(9), top_p=0.9))
        np.testing.assert_array_equal(*got)
    finally:
        k.set_num_threads(usual)


def test_of_equal_tokens_at_the_border_top_p_keeps_the_first(place: Placement):
    for vocab, top_p, kept in ((64, 0.25, 16), (1000, 0.5, 500), (1000, 0.0005, 1)):
        logits = np.zeros(vocab, np.float32)
        logits[::2] = -0.0
        counts = drawn_counts(place, logits, 20_000, {"top_p": top_p})
        assert np.flatnonzero(counts).max() == kept - 1
        assert (counts[:kept] > 0).all()
    logits = np.array([0, 2, 0, 2, 0, 2, 0], np.float32)  # 2, 2, 2 and one of the zeros
    mass = np.exp(logits)
    counts = drawn_counts(place, logits, 20_000, {"top_p": (3 * mass[1] + 0.5) / mass.sum()})
    assert np.flatnonzero(counts).tolist() == [0, 1, 3, 5]


def test_top_k_keeps_the_equals_of_the_last(place: Placement):
    logits = np.array([1, 3, 2, 2, 0, 2, 1], np.float32)
    counts = drawn_counts(place, logits, 20_000, {"top_k": 2})
    assert np.flatnonzero(counts).tolist() == [1, 2, 3, 5]


def test_greedy_takes_the_first_of_the_largest(place: Placement):
    for vocab, firsts in ((5, [1, 3]), (50257, [40000, 50256, 40001]), (1, [0])):
        logits = np.full(vocab, -3, np.float32)
        logits[firsts] = 4
        got = draw(Operands(place, "dense"), logits[None], temperature=0.0, top_k=1, top_p=0.1)
        assert got.tolist() == [min(firsts)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf throughout"])
def test_a_row_without_a_distribution_gives_minus_one_and_harms_no_other(
    bad: str, temperature: float, place: Placement
):
    logits = np.random.default_rng(6).standard_normal((3, 777)).astype(np.float32)
    logits[1] = -np.inf if bad == "-inf throughout" else logits[1]
    if bad != "-inf throughout":
        logits[1, 776] = float(bad)
    for combination in ({}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9}):
        got = draw(Operands(place, "strided"), logits, temperature=temperature, **combination)
        assert got[1] == -1
        assert (got[[0, 2]] >= 0).all()


def test_a_forbidden_token_is_never_drawn(place: Placement):
    logits = np.full(300, -np.inf, np.float32)
    logits[[7, 299]] = -1e4, -1e4
    for combination in ({}, {"top_k": 5}, {"top_p": 0.99}, {"min_p": 0.5}, {"typical_p": 0.99}):
        counts = drawn_counts(place, logits, 20_000, combination)
        assert set(np.flatnonzero(counts)) <= {7, 299}
    assert counts[7] > 0


def test_a_tiny_temperature_is_greedy(place: Placement):
    logits = np.array([[1.0, 2.0, 1.5, -np.inf]], np.float32)
    for temperature in (1e-30, 1e-40):
        got = draw(Operands(place, "dense"), logits, temperature=temperature, top_p=0.9)
        assert got.tolist() == [1]


def test_a_forbidden_place_stays_forbidden_and_log_sum_exp_minds_infinities(place: Placement):
    o = Operands(place, "dense")
    logits = o.rows(np.array([[1, 2], [3, 4]], np.float32))
    index = [o.int32(np.array(each)) for each in ([1, 0], [0, 1])]
    k.bias_logits(logits, *index, o.fp32(np.array([-np.inf, 1])), place.stream)
    np.testing.assert_array_equal(o.read(logits), [[1, 3], [-np.inf, 4]])
    rows = np.array([[0, -np.inf], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]], np.float32)
    out = o.fp32(np.zeros(4))
    k.log_sum_exp(out, o.rows(rows), place.stream)
    np.testing.assert_array_equal(place.numpy(out), [0, -np.inf, np.inf, np.nan])


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_an_index_out_of_range_is_refused(place: Placement):
    o = Operands(place, "dense")

    def int32(*values: int) -> k.Tensor:
        return o.int32(np.array(values))

    x, one = o.rows(np.zeros((2, 5), np.float32)), o.fp32(np.ones(2))
    for bad in (-1, 5):
        with pytest.raises(k.Error, match=rf"tokens\[0\]: got {bad}, wanted 0 to 4"):
            k.penalize(x, int32(0, 1, 1), int32(bad), int32(0), one, one, one)
        with pytest.raises(k.Error, match=rf"tokens\[0\]: got {bad}, wanted 0 to 4"):
            k.bias_logits(x, int32(0), int32(bad), o.fp32(np.ones(1)))
    with pytest.raises(k.Error, match=r"rows\[0\]: got 2, wanted 0 to 1"):
        k.bias_logits(x, int32(2), int32(0), o.fp32(np.ones(1)))
    with pytest.raises(k.Error, match=r"offsets\[1\]: got 1 and then 2, wanted .* 0 to 1"):
        k.penalize(x, int32(0, 1, 2), int32(0), int32(0), one, one, one)
    with pytest.raises(k.Error, match="vocab: got 0"):
        draw(o, np.zeros((2, 0), np.float32))


def test_a_column_that_is_not_there_gives_nan_and_no_rank(place: Placement):
    o = Operands(place, "dense")
    x, columns = o.rows(np.ones((3, 2), np.float32)), o.int64(np.array([-1, 1, 2]))
    out, ranks = o.fp32(np.zeros(3)), o.int32(np.full(3, -7))
    k.gather_columns(out, x, columns, place.stream)
    k.rank_columns(ranks, x, columns, place.stream)
    np.testing.assert_array_equal(place.numpy(out), [np.nan, 1, np.nan])
    np.testing.assert_array_equal(place.numpy(ranks), [0, 2, 0])
