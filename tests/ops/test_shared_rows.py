"""A GPU divides a row of logits among several blocks where rows are few. Its log-sum-exp and its
greedy token do not depend on how many rows there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.placement import Placement

from tests import tolerance
from tests.ops.case import LAYOUTS, Arrays, Operands
from tests.ops.sampling import draw, log_sum_exp
from tests.places import TORCH_DTYPES, on_gpu, rounded

# With these numbers of rows of 128256 elements, an H200 has 8, 4, 2 and 1 blocks for each when it
# draws, and when it computes log-sum-exps. 5003 elements are always one block's.
COUNTS = (1, 20, 50, 100, 300)
VOCABS = (5003, 50257, 128256)


def numbers_of_rows(place: Placement) -> tuple[int, ...]:
    return COUNTS if on_gpu(place) else COUNTS[:2]


def sums_of(o: Operands, logits: np.ndarray) -> np.ndarray:
    arrays: Arrays = {"x": logits}
    return log_sum_exp(o, arrays, logits.shape)


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_log_sum_exp_does_not_depend_on_the_number_of_rows(vocab: int, place: Placement):
    rng = np.random.default_rng(vocab)
    logits = rounded((rng.standard_normal((3, vocab)) * 5).astype(np.float32), place.dtype)
    whole = sums_of(Operands(place, "dense"), logits)
    for count in numbers_of_rows(place):
        for layout in LAYOUTS if count == 1 else ("dense",):
            got = sums_of(Operands(place, layout), np.resize(logits, (count, vocab)))
            np.testing.assert_array_equal(got, np.resize(whole, count), f"{count} {layout}")


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_log_sum_exp_minds_infinities_anywhere_in_a_row(vocab: int, place: Placement):
    ordinary = np.random.default_rng(1).standard_normal(vocab).astype(np.float32)
    rows = np.stack([ordinary, ordinary, ordinary, np.full(vocab, -200.0, np.float32)])
    rows[0, : vocab - 2] = -np.inf
    rows[1] = -np.inf
    rows[2, vocab // 2] = np.inf
    rows[3, : vocab // 2] = -np.inf
    broken = np.stack([ordinary, rows[1], rows[2]])
    broken[:, vocab - 1] = np.nan
    rows = rounded(np.concatenate([rows, broken]), place.dtype)
    got = sums_of(Operands(place, "dense"), rows)
    np.testing.assert_array_equal(got[1:3], [-np.inf, np.inf])
    np.testing.assert_array_equal(np.isnan(got), [False] * 4 + [True] * 3)
    finite = torch.from_numpy(rows[[0, 3]]).to(place.device)
    truth, same = (
        finite.to(dtype).logsumexp(-1).double().cpu().numpy()
        for dtype in (torch.float64, TORCH_DTYPES[place.dtype])
    )
    assert not tolerance.allowed_error(truth, same, place.dtype, vocab).excess(got[[0, 3]])


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_greedy_token_is_the_first_of_the_largest_in_any_number_of_rows(
    vocab: int, place: Placement
):
    rng = np.random.default_rng(vocab)
    few = rng.integers(-9, 0, (5, vocab)).astype(np.float32)
    for row in few[:4]:
        row[rng.permutation(vocab)[:3]] = 1.0
    few[4, vocab - 1] = np.nan
    wanted = np.where(np.isnan(few).any(1), -1, few.argmax(1))
    for count in numbers_of_rows(place):
        for layout in LAYOUTS if count == 1 else ("dense",):
            for first in range(len(few)):
                logits = np.resize(np.roll(few, -first, 0), (count, vocab))
                got = draw(Operands(place, layout), logits, temperature=0.0)
                answer = np.resize(np.roll(wanted, -first), count)
                np.testing.assert_array_equal(got, answer, f"{count} {layout} {first}")
                if count >= len(few):
                    break
