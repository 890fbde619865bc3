"""A bucket is a tight upper bound of every batch that it is chosen for, and there are few
buckets."""

from __future__ import annotations

import numpy as np
from fusewire.models.buckets import MOST_TOKENS, STEPS, Bucket, bucket_of, power_of_two
from hypothesis import given
from hypothesis import strategies as st

from tests.tolerance import PADDING_SHARE

BATCHES = st.lists(st.integers(1, 512), min_size=1, max_size=64)


def bucket_for(lengths: list[int]) -> Bucket | None:
    return bucket_of(sum(lengths), len(lengths), max(lengths))


@given(BATCHES)
def test_a_batch_fits_its_bucket(lengths: list[int]) -> None:
    bucket = bucket_for(lengths)
    if bucket is None:
        assert sum(lengths) > MOST_TOKENS
        return
    assert sum(lengths) <= bucket.tokens <= MOST_TOKENS
    assert len(lengths) <= bucket.sequences <= bucket.tokens
    assert max(lengths) <= bucket.max_seqlen <= bucket.tokens


@given(st.integers(1, MOST_TOKENS))
def test_padding_is_at_most_one_step_and_none_up_to_64_tokens(tokens: int) -> None:
    bucket = bucket_of(tokens, 1, tokens)
    assert bucket is not None
    padding = bucket.tokens - tokens
    assert padding * STEPS <= tokens
    assert padding == 0 or tokens > 64


@given(BATCHES)
def test_a_batch_as_large_as_its_bucket_has_the_same_one(lengths: list[int]) -> None:
    bucket = bucket_for(lengths)
    if bucket is not None:
        assert bucket_of(*bucket) == bucket


def test_a_larger_batch_never_has_a_smaller_bucket() -> None:
    sizes = [bucket_of(n, 1, 1) for n in range(1, MOST_TOKENS + 1)]
    tokens = [bucket.tokens for bucket in sizes if bucket is not None]
    assert len(tokens) == MOST_TOKENS
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 64 + 6 * STEPS  # exact up to 64, then STEPS per octave


def test_a_batch_beyond_the_most_tokens_has_none() -> None:
    assert bucket_of(MOST_TOKENS, 8, 512) is not None
    assert bucket_of(MOST_TOKENS + 1, 8, 512) is None


@given(st.integers(1, 1 << 20))
def test_powers_of_two(number: int) -> None:
    power = power_of_two(number)
    assert power & (power - 1) == 0
    assert power // 2 < number <= power


def test_a_mixed_workload_computes_little_padding() -> None:
    rng = np.random.default_rng(0)
    real = computed = 0
    for _ in range(2000):
        lengths = rng.integers(1, rng.choice([16, 128, 512]) + 1, rng.integers(1, 17))
        bucket = bucket_for(lengths.tolist())
        if bucket is not None:
            real, computed = real + int(lengths.sum()), computed + bucket.tokens
    assert real <= computed <= (1 + PADDING_SHARE) * real
