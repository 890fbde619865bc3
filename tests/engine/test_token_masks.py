"""What timestamps forbid is what transformers' processor forbids."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.sampling_state import SamplingState
from fusewire.engine.token_masks import OneOf, Timestamps
from fusewire.generation.parameters import GenerationParameters
from fusewire.placement import Placement
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

EOS, BEGIN, VOCABULARY, PROMPT = 40, 50, 71, [41, 42]


def processor(most_at_first: int | None, *, by_probability: bool) -> Any:
    config = SimpleNamespace(
        no_timestamps_token_id=BEGIN - 1,
        eos_token_id=EOS,
        max_initial_timestamp_index=most_at_first,
    )
    return WhisperTimeStampLogitsProcessor(
        config, len(PROMPT), _detect_timestamp_from_logprob=by_probability
    )


def written(chosen: random.Random, length: int) -> list[int]:
    """Words and timestamps, of which few go together."""
    return [
        chosen.randrange(BEGIN, VOCABULARY) if chosen.random() < 0.4 else chosen.randrange(EOS)
        for _ in range(length)
    ]


def after(mask: Timestamps, rows: list[list[int]]) -> Timestamps:
    for place, tokens in enumerate(zip(*rows, strict=True)):
        parents = np.arange(len(rows)) if place else np.zeros(len(rows))
        mask.advance(parents.astype(np.int32), np.array(tokens, np.int64))
    return mask


@pytest.mark.parametrize("most_at_first", [None, 0, 5])
def test_masks_are_those_of_transformers(most_at_first):
    chosen = random.Random(0)
    theirs = processor(most_at_first, by_probability=False)
    for length in [*range(8)] * 20:
        rows = [written(chosen, length) for _ in range(3)] if length else [[]]
        got = after(Timestamps(BEGIN, EOS, most_at_first), rows).forbidden(VOCABULARY)
        scores = torch.zeros(len(rows), VOCABULARY)
        wanted = theirs(torch.tensor([PROMPT + row for row in rows]), scores)
        np.testing.assert_array_equal(got, np.isinf(wanted.numpy()))


def test_timestamps_come_where_they_are_likelier_together_than_any_word():
    chosen, rng = random.Random(1), np.random.default_rng(1)
    place = Placement("cpu")
    processing = LogitsProcessor(place, VOCABULARY)
    theirs = processor(5, by_probability=True)
    words_forbidden = 0
    for length in [*range(8)] * 20:
        beams = 3 if length else 1
        rows = [written(chosen, length) for _ in range(beams)]
        logits = rng.normal(0, 3, (beams, VOCABULARY)).astype(np.float32)
        rules = SamplingRules(GenerationParameters())
        state = SamplingState(rules, PROMPT, mask=Timestamps(BEGIN, EOS, 5))
        for at, tokens in enumerate(zip(*rows, strict=True)):
            parents = np.arange(beams) if at else np.zeros(beams)
            state.advance(parents.astype(np.int32), np.array(tokens, np.int64))
        ours = kernels.Tensor.from_numpy(logits.copy())
        processing.process(ours, [state])
        wanted = theirs(torch.tensor([PROMPT + row for row in rows]), torch.tensor(logits))
        np.testing.assert_array_equal(ours.numpy(), wanted.numpy())
        words_forbidden += np.isinf(ours.numpy()[:, :BEGIN]).all(axis=1).sum()
    assert 20 < words_forbidden < 300


def test_a_fork_goes_on_by_itself():
    mask = Timestamps(BEGIN, EOS)
    fork = mask.fork()
    after(mask, [[BEGIN]])
    np.testing.assert_array_equal(
        fork.forbidden(VOCABULARY), Timestamps(BEGIN, EOS).forbidden(VOCABULARY)
    )


def test_one_of_some_tokens():
    mask = OneOf([5, 3]).forbidden(8)
    assert np.flatnonzero(~mask[0]).tolist() == [3, 5]
