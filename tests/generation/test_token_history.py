"""Restrictions of next tokens by the text so far are those of transformers for each text alone,
however texts fork, in time and memory that do not grow with the size of n-grams."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

VOCAB = 4  # few, so that they repeat
TEXT = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)


def banned(histories: k.TokenHistories, row: int = 0) -> list[int]:
    rows, tokens, values = k.token_biases([histories])
    assert np.isneginf(values).all()
    return sorted(tokens[rows == row].tolist())


def forbidden_by(processors: list, text: list[int]) -> list[int]:
    scores = torch.zeros(1, VOCAB)
    for each in processors:
        scores = each(torch.tensor([text]), scores)
    return torch.isinf(scores[0]).nonzero()[:, 0].tolist()


@given(
    n=st.integers(0, 5),
    source_n=st.integers(0, 4),
    prompt=TEXT,
    source=TEXT,
    words=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=4), max_size=4),
    seed=st.integers(0, 1000),
)
def test_beams_know_what_transformers_finds_in_their_texts(
    n, source_n, prompt, source, words, seed
):
    processors: list = [hf.NoRepeatNGramLogitsProcessor(n)] if n else []
    if source_n:
        source_ids = torch.tensor([source])
        processors.append(hf.EncoderNoRepeatNGramLogitsProcessor(source_n, source_ids))
    if words:
        processors.append(hf.NoBadWordsLogitsProcessor(words, None))
    histories = k.TokenHistories(
        prompt_ids=prompt,
        source_ids=source,
        no_repeat_ngram_size=n,
        encoder_no_repeat_ngram_size=source_n,
        bad_words=words,
        counts_prompt=True,
    )
    chosen, texts = random.Random(seed), [prompt]
    for _ in range(12):
        for row, text in enumerate(texts):
            assert banned(histories, row) == forbidden_by(processors, text)
        offsets, tokens, counts = k.seen_tokens([histories])
        assert len(offsets) == len(texts) + 1
        for row, text in enumerate(texts):
            mine = slice(*offsets[row : row + 2].tolist())
            assert sorted(tokens[mine].tolist()) == sorted({*text})
            new = text[len(prompt) :]
            assert [new.count(t) for t in tokens[mine].tolist()] == counts[mine].tolist()
        parents = [chosen.randrange(len(texts)) for _ in range(chosen.randint(1, 5))]
        fresh = [chosen.randrange(VOCAB) for _ in parents]
        histories.advance(parents, fresh)
        texts = [[*texts[parent], token] for parent, token in zip(parents, fresh, strict=True)]


def test_a_fork_goes_on_by_itself():
    first = k.TokenHistories(prompt_ids=[1, 2], no_repeat_ngram_size=2)
    fork = first.fork()
    first.append(1)
    assert (banned(first), banned(fork)) == ([2], [])


def thue_morse(length: int) -> list[int]:
    return [bin(i).count("1") % 2 for i in range(length)]


@pytest.mark.parametrize("in_the_prompt", [True, False])
def test_ngrams_of_one_hash_are_told_apart(in_the_prompt: bool):
    """A Thue-Morse sequence and its complement have one polynomial hash modulo 2**64, whatever its
    base (J. Pachocki and J. Radoszewski, 2013)."""
    one = thue_morse(2048)
    other = [1 - token for token in one]
    begin = [*one, 5]
    prompt = begin if in_the_prompt else [0]
    for last, wanted in ((one, [5]), (other, [])):
        histories = k.TokenHistories(prompt_ids=prompt, no_repeat_ngram_size=2049)
        for token in [*([] if in_the_prompt else begin), *last]:
            histories.append(token)
        assert banned(histories) == wanted


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("n", [1, 3, 1024])
def test_continuations_share_what_is_known_of_their_prompt(n: int):
    prompt = np.random.default_rng(0).integers(0, 50000, 16000).tolist()
    first = k.TokenHistories(
        prompt_ids=prompt, source_ids=prompt, no_repeat_ngram_size=n, counts_prompt=True
    )
    before = resident_bytes()
    forks = [first.fork() for _ in range(2000)]
    assert resident_bytes() - before < 2000 * 10_000 < 2000 * 4 * len(prompt)
    assert len(forks) == 2000


def test_what_repeats_on_purpose_costs_little():
    """The n-grams are long, and all but one of their tokens occur everywhere."""
    histories = k.TokenHistories(prompt_ids=[7] * 100_000, no_repeat_ngram_size=1024)
    begin = time.thread_time()
    for token in [3, *[7] * 1000]:
        histories.append(token)
        banned(histories)
    assert time.thread_time() - begin < 2


def test_a_parent_that_is_not_there_is_refused():
    histories = k.TokenHistories(prompt_ids=[1], no_repeat_ngram_size=2)
    with pytest.raises(k.Error, match="parents: got 1, wanted 0 to 0, a row"):
        histories.advance([0, 1], [5, 5])
    with pytest.raises(k.Error, match="got 2 parents and 1 tokens"):
        histories.advance([0, 0], [5])
    assert histories.rows == 1
