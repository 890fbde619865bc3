"""What is known of the tokens so far is transformers' own, in memory that grows with them alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from fusewire.engine import token_history
from fusewire.engine.token_history import NGrams, SeenTokens
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

FEW = st.lists(st.integers(0, 2), max_size=40)  # tokens, which repeat


def banned(n: int, tokens: list[int]) -> list[int]:
    if not tokens:
        return []
    scores = NoRepeatNGramLogitsProcessor(n)(torch.tensor([tokens]), torch.zeros(1, 3))
    return torch.isinf(scores[0]).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("hash_of", [hash, len, lambda _: -1], ids=["hash", "length", "one"])
@given(n=st.integers(1, 7), prompt=FEW, answers=st.lists(FEW, min_size=1, max_size=3))
def test_ngrams_are_those_of_transformers(hash_of: Callable, n, prompt, answers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_history, "hash", hash_of, raising=False)  # hashes may well be equal
        first = NGrams(prompt, n)
        for each, answer in zip([first, first.fork(), first.fork()], answers, strict=False):
            for end, token in enumerate([*answer, 0]):
                assert each.completions() == banned(n, prompt + answer[:end])
                each.append(token)


def taken(make: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        kept = make()
        return tracemalloc.get_traced_memory()[0] if kept else 0
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", [1, 3, 1024])
def test_ngrams_take_memory_by_the_token_whatever_their_size_and_number(n: int):
    prompt = np.random.default_rng(0).integers(0, 50000, 16000).tolist()

    def forks() -> list[NGrams]:
        first = NGrams(prompt, n)
        return [first, *(first.fork() for _ in range(63))]

    assert taken(forks) < 300 * len(prompt) + 64 * 10_000


def test_continuations_share_the_seen_tokens_of_their_prompt():
    prompt = list(range(16000))

    def forks() -> list[SeenTokens]:
        first = SeenTokens(prompt)
        return [first, *(first.fork() for _ in range(63))]

    assert taken(forks) < 64 * 9 * len(prompt)  # token and count, for the kernel
