"""The texts and the comparison of the benchmark of `encode`, with systems made up here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import encode
from benchmarks.encode import CASES, measure, texts_of


class Fake:
    """Takes so many seconds, and is off by `error`."""

    def __init__(self, name: str, seconds: float, error: float = 0.0) -> None:
        self.name, self.seconds, self.error = name, seconds, error

    def run(self, texts: list[str]) -> tuple[np.ndarray, float, float]:
        return np.full((len(texts), 3), self.error, np.float32), self.seconds, 0.05


def measured(*systems: Any) -> dict[str, dict[str, Any]]:
    return {row["system"]: row for row in measure([*systems], ["a"] * 10, rounds=3)}


def test_texts_are_real_words_in_the_asked_order() -> None:
    for case in CASES:
        assert texts_of(case, 40) == texts_of(case, 40)
        lengths = [len(text.split()) for text in texts_of(case, 40)]
        least, most = encode.WORDS[case.partition(",")[0]]
        assert least <= min(lengths) < max(lengths) <= most
        assert (lengths == sorted(lengths)) == case.endswith(", sorted")


def test_speeds_are_compared_within_each_round() -> None:
    found = measured(Fake(encode.OURS, 0.5), Fake(encode.THEIRS, 2.0))
    assert found[encode.OURS]["texts_per_s"] == 20.0
    assert found[encode.OURS]["times_sentence_transformers"] == 4.0
    assert found[encode.THEIRS]["times_sentence_transformers"] == 1.0
    assert found[encode.OURS]["disturbed"] == 0.05


def test_other_embeddings_are_no_comparison() -> None:
    with pytest.raises(SystemExit, match="fusewire: off by"):
        measured(Fake(encode.OURS, 0.5, error=0.01), Fake(encode.THEIRS, 2.0))
