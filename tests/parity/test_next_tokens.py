"""Distributions of next tokens, against torch's losses in fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fusewire.parity import agreement
from fusewire.parity.next_tokens import NextTokens
from torch.nn import functional

VOCABULARY = 97


def texts(seed: int, noise: float) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Logits of both sides and following tokens, of texts of several lengths."""
    random = np.random.default_rng(seed)
    made = []
    for places in (1, 7, 30):
        truth = (4 * random.standard_normal((places, VOCABULARY))).astype(np.float32)
        off = (noise * random.standard_normal(truth.shape)).astype(np.float32)
        made.append((truth + off, truth, random.integers(0, VOCABULARY, places)))
    return made


def found(rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> NextTokens:
    sums = NextTokens()
    for got, truth, following in rows:
        sums.add(got, truth, following)
    return sums


@pytest.mark.parametrize("at_once", [1 << 22, 200])
@pytest.mark.parametrize("noise", [0.01, 2.0])
def test_divergence_and_perplexities_are_torchs(monkeypatch, noise, at_once):
    monkeypatch.setattr(agreement, "_NUMBERS", at_once)
    rows = texts(0, noise)
    measured = found(rows)
    got, truth = (
        torch.from_numpy(np.concatenate([row[side] for row in rows])).double() for side in (0, 1)
    )
    following = torch.from_numpy(np.concatenate([row[2] for row in rows]))
    logs = got.log_softmax(-1), truth.log_softmax(-1)
    divergence = functional.kl_div(*logs, reduction="batchmean", log_target=True).item()
    assert measured.places == 38
    assert measured.kl_divergence == pytest.approx(divergence, rel=1e-9)
    assert measured.perplexities == pytest.approx(
        tuple(functional.cross_entropy(each, following).exp().item() for each in (got, truth)),
        rel=1e-9,
    )
    equal = (got.argmax(-1) == truth.argmax(-1)).sum().item()
    assert measured.greedy_equal == equal
    assert (equal == 38) == (noise < 1)


def test_the_same_logits_diverge_by_nothing():
    measured = found([(truth, truth, following) for _, truth, following in texts(1, 0.0)])
    assert measured.kl_divergence == 0
    assert measured.perplexities[0] == measured.perplexities[1]


@pytest.mark.parametrize("side", [0, 1])
def test_a_nan_on_either_side_comes_through(side):
    rows = texts(2, 0.1)
    rows[1][side][3, 5] = np.nan
    measured = found(rows)
    assert np.isnan(measured.kl_divergence)
    assert np.isnan(measured.perplexities[side])
    assert measured.greedy_equal < measured.places
