"""The alignment path of tokens to audio is that of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.generation.speech_times import median_filtered, token_positions, warped
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

SHAPES = [(1, 1), (1, 9), (9, 1), (2, 3), (7, 40), (40, 7), (33, 150)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("levels", [None, 2, 4])
def test_the_path_is_that_of_transformers(shape, levels):
    """For random costs, and for few different ones, whose sums are often equal."""
    rng = np.random.default_rng(len(SHAPES))
    for _ in range(5):
        cost = rng.normal(size=shape) if levels is None else rng.integers(levels, size=shape) * 1.0
        tokens, positions = _dynamic_time_warping(cost)
        comes_to = positions[np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)]
        np.testing.assert_array_equal(warped(cost), comes_to)


@pytest.mark.parametrize("width", [1, 3, 5, 7, 9])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 30])
def test_the_median_is_that_of_transformers(width, count):
    values = np.random.default_rng(width).normal(size=(6, count)).astype(np.float32)
    wanted = _median_filter(torch.from_numpy(values)[None], width)[0].numpy()
    np.testing.assert_array_equal(median_filtered(values, width), wanted)


def test_a_position_that_says_nothing_moves_no_token():
    """Weights that are equal for all tokens have no deviation to divide by."""
    weights = np.random.default_rng(3).random((2, 6, 20)).astype(np.float32)
    with_silence = np.concatenate([weights, np.full((2, 6, 5), 0.25, np.float32)], axis=2)
    np.testing.assert_array_equal(token_positions(with_silence, 1), token_positions(weights, 1))
    assert token_positions(np.ones((1, 1, 4), np.float32), 7).tolist() == [0]
