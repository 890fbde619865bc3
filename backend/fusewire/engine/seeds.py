"""A seed for each continuation of a request, none like that of another request's."""

from __future__ import annotations

_MASK = 2**64 - 1


def seed_of(seed: int, index: int) -> int:
    """The seed of continuation `index` of a request: the request's own for the first, so that
    asking for more changes nothing of it; for others mixed from both, as neighbouring requests may
    well have neighbouring seeds."""
    return seed if index == 0 else _mixed(_mixed(seed & _MASK) + index)


def _mixed(x: int) -> int:
    """The output of SplitMix64 (Steele et al. 2014) at state x: each bit changes half of the
    others, and no two states have the same."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
