"""How batches share recorded forwards: by upper bounds that are close to what they hold."""

from __future__ import annotations

from typing import NamedTuple

# A bucket has at most this share more tokens than the batch: 1 / STEPS.
STEPS = 32
# Beyond this a forward keeps the device busy for longer than its launches take, so nothing is
# gained by recording it.
MOST_TOKENS = 4096


class Bucket(NamedTuple):
    """Upper bounds of a batch; every batch within them may replay the same recording."""

    tokens: int
    sequences: int
    max_seqlen: int


def bucket_of(tokens: int, sequences: int, max_seqlen: int) -> Bucket | None:
    """The bucket of a batch, or None when it is too large to be worth a recording.

    Tokens are computed, so they are rounded up finely (exact up to 64, then in 32 steps an octave);
    sequences and the longest length only bound grids and choose kernels, so powers of two do.
    """
    if tokens > MOST_TOKENS:
        return None
    step = max(1, power_of_two(tokens) // (2 * STEPS))
    rounded = -(-tokens // step) * step
    longest = min(power_of_two(max(max_seqlen, 32)), rounded)
    return Bucket(rounded, min(power_of_two(sequences), rounded), longest)


def power_of_two(number: int) -> int:
    """The least power of two that is no less than a number >= 1."""
    return 1 << (number - 1).bit_length()
