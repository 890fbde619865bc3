"""Buckets of batch sizes: batches share captured forwards by upper bounds close to their own
sizes."""

from __future__ import annotations

from typing import NamedTuple

# A bucket has at most 1 / STEPS more tokens than the batch.
STEPS = 32
# Beyond this, computing a forward takes the device longer than launching it takes the host, so a
# captured graph gains nothing.
MOST_TOKENS = 4096


class Bucket(NamedTuple):
    """Upper bounds of a batch; every batch within them may replay the same captured graph."""

    tokens: int
    sequences: int
    max_seqlen: int


def bucket_of(tokens: int, sequences: int, max_seqlen: int) -> Bucket | None:
    """Returns the bucket of a batch, or None if it is too large to be worth capturing.

    Padding tokens are computed, so tokens are rounded up finely (exact up to 64, then in 32 steps
    per octave). The number of sequences and the maximum length only bound grids and select kernels,
    so they are rounded up to powers of two.
    """
    if tokens > MOST_TOKENS:
        return None
    step = max(1, power_of_two(tokens) // (2 * STEPS))
    rounded = -(-tokens // step) * step
    longest = min(power_of_two(max(max_seqlen, 32)), rounded)
    return Bucket(rounded, min(power_of_two(sequences), rounded), longest)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`, for number >= 1."""
    return 1 << (number - 1).bit_length()
