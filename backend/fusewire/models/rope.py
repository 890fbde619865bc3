"""RoPE (Su et al., 2021): rotary position embeddings and their scalings for long texts. numpy only.

Computed as in transformers, in fp32 where it uses fp32, so that the tables are equal and not merely
close: far from the start of a text an ulp of a frequency makes a noticeable angle.

A cached key keeps the rotation that it was stored with, so a scaling is exact with a cache only if
its frequencies do not change while a sequence grows. Those of two scalings depend on the length of
the sequence, which is therefore limited to lengths at which they are constant:

- dynamic: the frequencies are unscaled up to max_position_embeddings, which is the model's maximum
  length in any case;
- longrope: `short_factor` applies up to original_max_position_embeddings, which is therefore the
  maximum length; beyond it every key, cached ones too, would need the angles of `long_factor`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Rope:
    """The angle of position p and pair k is p * frequencies[k]; cos and sin are multiplied by
    `magnitude`.

    The first 2 * len(frequencies) elements of a head are rotated, in Hugging Face's half-split
    order.
    """

    frequencies: tuple[float, ...]  # fp32 values
    magnitude: float = 1.0
    max_length: int | None = None  # positions for which the frequencies are exact; None: all

    @classmethod
    def of(cls, frequencies: Floats, magnitude: float = 1.0, max_length: int | None = None) -> Rope:
        return cls(tuple(frequencies.tolist()), magnitude, max_length)

    def table(self, length: int) -> tuple[Floats, Floats]:
        """Returns cos and sin: fp32 [length, len(frequencies)] each. transformers repeats them for
        both halves of a head, which the kernel does not need."""
        angles = np.arange(length, dtype=np.float32)[:, None] * np.array(
            self.frequencies, np.float32
        )
        magnitude = np.float32(self.magnitude)
        return np.cos(angles) * magnitude, np.sin(angles) * magnitude


def wavelengths(theta: float, dim: int) -> Floats:
    """Returns theta^(2k / dim), in positions per radian: fp32 [ceil(dim / 2)]."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    # numpy's fp32 power is sometimes an ulp off; torch returns the rounded fp64 power.
    return np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)


def unscaled(theta: float, dim: int) -> Floats:
    return np.float32(1) / wavelengths(theta, dim)


def linear(theta: float, dim: int, factor: float) -> Floats:
    """Position interpolation (Chen et al., 2023): positions are divided by factor."""
    return unscaled(theta, dim) / np.float32(factor)


def llama3(theta: float, dim: int, factor: float, low: float, high: float, original: int) -> Floats:
    """Llama 3.1: wavelengths above original / low are stretched by factor, those below original /
    high stay the same, and those in between are interpolated."""
    frequencies = unscaled(theta, dim)
    one = np.float32(1)
    wave = one / frequencies * np.float32(2 * math.pi)
    stretched = frequencies / np.float32(factor)
    turns = one / wave * np.float32(original)
    share = (turns - np.float32(low)) / np.float32(high - low)
    blended = (one - share) * frequencies / np.float32(factor) + share * frequencies
    between: Floats = np.where(wave < np.float32(original / high), frequencies, blended)
    scaled: Floats = np.where(wave > np.float32(original / low), stretched, between)
    return scaled


def yarn(
    theta: float,
    dim: int,
    factor: float,
    original: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Floats:
    """YaRN (Peng et al., 2023, section 3.2): pairs that rotate more than beta_fast times within the
    original length stay the same, those that rotate less than beta_slow times are stretched by
    factor, with a linear ramp in between."""

    def pair_rotating(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_rotating(beta_fast), pair_rotating(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    one = np.float32(1)
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(first)) / np.float32(last - first)
    kept: Floats = one - np.clip(ramp, np.float32(0), one)
    waves = wavelengths(theta, dim)
    stretched = one / (np.float32(factor) * waves)
    return stretched * (one - kept) + one / waves * kept


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """The attention factor of YaRN, section 3.4, with DeepSeek's `mscale`."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope(theta: float, dim: int, factors: Sequence[float]) -> Floats:
    """LongRoPE (Ding et al., 2024): each pair is stretched by its own factor."""
    return np.float32(1) / (np.array(factors, np.float32) * wavelengths(theta, dim))


def longrope_magnitude(factor: float, original: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
