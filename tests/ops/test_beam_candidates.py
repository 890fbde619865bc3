"""The candidates of beam search are those of sorting all scores, in a total order."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.ops.beams import Candidates, Groups, candidates, log_softmax, oracle
from tests.ops.case import Operands, normal
from tests.places import CPU, CPU_TARGETS, rounded
from tests.tolerance import MODEL_FP32, PIPELINE_SCORE

# Candidates of k beams by the number of end-of-sequence tokens (transformers keeps as many).
SIZES = [
    (beams, vocab, max(2, 1 + eos) * beams)
    for beams, vocab, eos in [
        (1, 5, 0),
        (4, 5, 1),
        (33, 7, 3),
        (2, 255, 1),
        (3, 257, 2),
        (7, 1000, 1),
        (33, 8192, 3),
        (5, 50257, 1),
        (12, 32000, 2),
        (512, 300, 3),
        (512, 3, 1),
        (4, 260003, 1),
    ]
]


def logits_of(rng: np.random.Generator, rows: int, vocab: int, place: Placement) -> NDArray:
    return rounded(normal(rng, rows, vocab) * 4, place.dtype)


def expect_best(got: Candidates, logits: NDArray, beam_scores: NDArray, groups: Groups) -> None:
    """Asserts equality up to the rounding of scores, which may swap nearly equal ones."""
    wanted = oracle(logits.astype(np.float64), beam_scores.astype(np.float64), groups)
    log_probs = logits if groups.normalized else log_softmax(logits.astype(np.float64))
    begins = np.cumsum([0, *groups.beams])
    for g in range(len(groups.beams)):
        used = wanted.beams[g] >= 0
        np.testing.assert_array_equal(got.beams[g] >= 0, used)
        beams, tokens = got.beams[g][used], got.tokens[g][used]
        assert len(set(zip(beams, tokens, strict=True))) == len(beams)
        of_token = log_probs[begins[g] + beams, tokens]
        np.testing.assert_allclose(got.log_probs[g][used], of_token, 0, PIPELINE_SCORE)
        score = beam_scores[begins[g] + beams] + got.log_probs[g][used]
        np.testing.assert_array_equal(got.scores[g][used], score)
        np.testing.assert_allclose(got.scores[g][used], wanted.scores[g][used], 0, PIPELINE_SCORE)
        key = list(zip(-got.scores[g][used], beams, tokens, strict=True))
        assert key == sorted(key)
        for rest, unused in ((got.scores, -np.inf), (got.log_probs, -np.inf), (got.tokens, -1)):
            assert (rest[g][~used] == unused).all()


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("beams", "vocab", "count"), SIZES)
def test_candidates_are_the_best_of_all_scores(beams, vocab, count, normalized, place: Placement):
    rng = np.random.default_rng(beams + vocab)
    logits = logits_of(rng, beams, vocab, place)
    beam_scores = -rng.random(beams, dtype=np.float32) * 5
    groups = Groups((beams,), vocab, (count,), normalized)
    for layout in ("dense", "strided", "unaligned"):
        got = candidates(Operands(place, layout), logits, beam_scores, groups)
        expect_best(got, logits, beam_scores, groups)


@pytest.mark.parametrize(("beams", "vocab", "count"), SIZES)
def test_equal_scores_go_to_the_lower_beam_and_token(beams, vocab, count, place: Placement):
    """Normalized rows have few distinct values, which fp32 adds exactly, so results are equal."""
    rng = np.random.default_rng(vocab)
    for levels in (1, 2, 40):
        logits = rng.integers(0, levels, (beams, vocab)).astype(np.float32)
        logits[rng.random(logits.shape) < 0.1] = -0.0
        beam_scores = rng.integers(-1, 1, beams).astype(np.float32)
        groups = Groups((beams,), vocab, (count,), True)
        got = candidates(Operands(place, "dense"), logits, beam_scores, groups)
        for ours, wanted in zip(got, oracle(logits, beam_scores, groups), strict=True):
            np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("normalized", [False, True])
def test_equal_rows_tie_token_by_token(normalized: bool, place: Placement):
    """Every beam has the same row and score: the beams alternate at each token's rank."""
    row = np.random.default_rng(1).permutation(2000).astype(np.float32) / 256
    logits = rounded(np.tile(row, (5, 1)), place.dtype)
    logits[:, logits[0].argmax()] += 1  # 16 bits round some of these to equal values
    groups = Groups((5,), 2000, (5,), normalized)
    got = candidates(Operands(place, "strided"), logits, np.full(5, -2, np.float32), groups)
    assert got.beams[0].tolist() == [0, 1, 2, 3, 4]
    assert (got.tokens[0] == logits[0].argmax()).all()
    assert len(set(got.scores[0])) == 1


@pytest.mark.parametrize("rising", [True, False])
def test_the_worst_order_for_a_search_is_as_good_as_any(rising: bool, place: Placement):
    """Each element is larger than all before it, by less than the next strip of columns."""
    vocab = 30000 if place.dtype == "float32" else 1800
    row = np.arange(vocab, dtype=np.float32)[:: 1 if rising else -1]
    logits = rounded(np.stack([row / 8, row / 8 + 0.0625]), place.dtype)
    groups = Groups((2,), vocab, (600,), True)
    got = candidates(Operands(place, "dense"), logits, np.zeros(2, np.float32), groups)
    for ours, wanted in zip(got, oracle(logits, np.zeros(2, np.float32), groups), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_a_forbidden_token_is_no_candidate(place: Placement):
    rng = np.random.default_rng(3)
    for vocab in (6, 4000):
        logits = logits_of(rng, 6, vocab, place)
        logits[rng.random(logits.shape) < 0.5] = -np.inf
        logits[1] = -np.inf  # no continuation at all
        logits[4, 1:] = -np.inf  # forced
        beam_scores = np.array([-1, 0, -3, -2, -9, -1], np.float32)
        for normalized in (False, True):
            groups = Groups((3, 3), vocab, (30, 12), normalized)
            got = candidates(Operands(place, "dense"), logits, beam_scores, groups)
            expect_best(got, logits, beam_scores, groups)
            assert 1 not in got.beams[0]
            assert got.tokens[1][got.beams[1] == 1].tolist() in ([], [0])


def test_a_dead_beam_is_not_looked_at(place: Placement):
    logits = logits_of(np.random.default_rng(4), 4, 3000, place)
    beam_scores = np.array([-np.inf, -1, -np.inf, -2], np.float32)
    groups = Groups((3, 1), 3000, (9, 2))
    wanted = candidates(Operands(place, "dense"), logits, beam_scores, groups)
    assert set(wanted.beams[0]) == {1}
    logits[[0, 2]] = np.nan
    got = candidates(Operands(place, "dense"), logits, beam_scores, groups)
    for ours, same in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(ours, same)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_breaks_its_group_alone(bad: float, normalized: bool, place: Placement):
    rng = np.random.default_rng(5)
    for vocab, column in ((5, 4), (20000, 0), (20000, 19999), (20001, 20000)):
        logits = logits_of(rng, 7, vocab, place)
        beam_scores = -rng.random(7, dtype=np.float32)
        groups = Groups((2, 3, 2), vocab, (4, 6, 4), normalized)
        wanted = candidates(Operands(place, "dense"), logits, beam_scores, groups)
        logits[3, column] = bad
        got = candidates(Operands(place, "strided"), logits, beam_scores, groups)
        assert np.isnan([got.scores[1], got.log_probs[1]]).all()
        assert (np.array([got.beams[1], got.tokens[1]]) == -1).all()
        for ours, same in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(np.delete(ours, 1, 0), np.delete(same, 1, 0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_beam_score_breaks_its_group(bad: float, place: Placement):
    logits = logits_of(np.random.default_rng(6), 3, 50, place)
    got = candidates(
        Operands(place, "dense"), logits, np.float32([0, bad, 0]), Groups((2, 1), 50, (4, 2))
    )
    assert np.isnan(got.scores[0]).all()
    assert (got.tokens[1, :2] >= 0).all()


def test_groups_may_be_empty_and_want_nothing(place: Placement):
    logits = logits_of(np.random.default_rng(7), 3, 100, place)
    groups = Groups((0, 2, 0, 1), 100, (4, 0, 0, 3))
    got = candidates(Operands(place, "dense"), logits, np.zeros(3, np.float32), groups)
    assert (got.tokens[:3] == -1).all()
    assert (got.tokens[3] >= 0).tolist() == [True, True, True, False]


def test_candidates_do_not_depend_on_the_rest_of_the_batch(place: Placement):
    rng, vocab = np.random.default_rng(8), 40001
    logits = logits_of(rng, 9, vocab, place)
    beam_scores = -rng.random(9, dtype=np.float32)
    together = candidates(
        Operands(place, "dense"), logits, beam_scores, Groups((4, 1, 4), vocab, (8, 8, 8))
    )
    for g, rows in enumerate((slice(0, 4), slice(4, 5), slice(5, 9))):
        groups = Groups((rows.stop - rows.start,), vocab, (8,))
        for layout in ("dense", "strided", "unaligned"):
            alone = candidates(Operands(place, layout), logits[rows], beam_scores[rows], groups)
            for ours, same in zip(alone, together, strict=True):
                np.testing.assert_array_equal(ours[0], same[g])


def test_candidates_do_not_depend_on_the_threads():
    place, usual = Placement("cpu"), k.num_threads()
    logits = logits_of(np.random.default_rng(9), 4, 50257, place)
    groups = Groups((4,), 50257, (8,))
    try:
        got = []
        for threads in (1, 2):
            k.set_num_threads(threads)
            got.append(candidates(Operands(place, "dense"), logits, np.zeros(4), groups))
        for one, two in zip(*got, strict=True):
            np.testing.assert_array_equal(one, two)
    finally:
        k.set_num_threads(usual)


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@hypothesis_settings(max_examples=200)
@given(
    beams=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    vocab=st.integers(1, 1500),
    eos=st.integers(0, 3),
    levels=st.integers(1, 2000),
    forbidden=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    dead=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_groups_equal_the_sort(place, beams, vocab, eos, levels, forbidden, dead, seed):
    rng, rows = np.random.default_rng(seed), sum(beams)
    logits = rng.integers(-levels, levels, (rows, vocab)).astype(np.float32) / 64
    logits[rng.random(logits.shape) < forbidden] = -np.inf
    beam_scores = rng.integers(-50, 0, rows).astype(np.float32) / 16
    beam_scores[rng.random(rows) < dead] = -np.inf
    counts = tuple(max(2, 1 + eos) * count for count in beams)
    if max(counts) == 0:
        counts = (1,) * len(beams)
    groups = Groups(tuple(beams), vocab, counts, True)
    got = candidates(Operands(place, "dense"), logits, beam_scores, groups)
    for ours, wanted in zip(got, oracle(logits, beam_scores, groups), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_rows_normalized_beforehand_give_the_same_candidates(place: Placement):
    """Processors of log-probabilities need normalized rows: in fp32, whatever the logits' dtype."""
    rng, groups = np.random.default_rng(10), Groups((4,), 9000, (8,))
    o, logits = Operands(place, "dense"), logits_of(rng, 4, 9000, place)
    at_once = candidates(o, logits, np.zeros(4, np.float32), groups)
    rows = o.fp32(np.zeros((4, 9000)))
    k.log_softmax(rows, o.rows(logits), place.stream)
    fp32 = Operands(Placement(place.device, "float32"), "dense")
    normalized = groups._replace(normalized=True)
    later = candidates(fp32, place.numpy(rows).copy(), np.zeros(4, np.float32), normalized)
    np.testing.assert_array_equal(later.tokens, at_once.tokens)
    np.testing.assert_allclose(later.scores, at_once.scores, 0, PIPELINE_SCORE)


def test_log_softmax_may_be_in_place_and_minds_infinities(place: Placement):
    stream = place.stream
    x = place.exact(np.array([[1, 2, -np.inf], [3, 3, 3]], np.float32), np.float32)
    k.log_softmax(x, x, stream)
    wanted = [[-1.3132617, -0.3132617, -np.inf], [-np.log(3)] * 3]
    np.testing.assert_allclose(place.numpy(x), np.array(wanted), 0, MODEL_FP32 / 100)
    bad = [[np.nan, 0, 1], [np.inf, 0, 1], [-np.inf] * 3, [0, 0, 0]]
    x = place.exact(np.array(bad, np.float32), np.float32)
    k.log_softmax(x, x, stream)
    assert np.isnan(place.numpy(x)).any(1).tolist() == [True, True, True, False]


@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_groups_that_do_not_fit_are_refused(place: Placement):
    o, logits = Operands(place, "dense"), np.zeros((3, 5), np.float32)

    def call(offsets: list[int], counts: list[int], most: int = 4, rows: int = 3) -> None:
        out = [o.fp32(np.zeros((1, most))) for _ in range(2)]
        index = [o.int32(np.zeros((1, most))) for _ in range(2)]
        offsets_, counts_ = o.int32(np.array(offsets)), o.int32(np.array(counts))
        scores = o.fp32(np.zeros(rows))
        k.beam_candidates(*out, *index, o.rows(logits), offsets_, counts_, scores, False)

    call([0, 3], [4])
    for offsets in ([0, 4], [-1, 3], [2, 1]):
        with pytest.raises(k.Error, match=r"offsets\[0\]: got .* wanted ascending .* 0 to 3"):
            call(offsets, [4])
    for count in (-1, 5):
        with pytest.raises(k.Error, match=rf"counts\[0\]: got {count}, wanted 0 to 4"):
            call([0, 3], [count])
    for most in (0, 2049):
        with pytest.raises(k.Error, match=rf"most: got {most}, wanted 1 to 2048"):
            call([0, 3], [0], most)
    with pytest.raises(k.Error, match=r"beam_scores: got float32\[4\].*rows=3"):
        call([0, 3], [4], rows=4)
    with pytest.raises(k.Error, match=r"counts: got int32\[2\].*groups=1"):
        call([0, 3], [4, 4])
