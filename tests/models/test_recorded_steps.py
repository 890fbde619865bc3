"""Captured steps (CUDA graphs) give the logits of eager ones, whichever sequences join and
leave."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.models import load_decoder, step_replay
from fusewire.models.decoder import DecoderModel
from fusewire.models.registry import DECODERS
from fusewire.models.step_replay import StepReplays
from fusewire.models.warm_up_prompts import warm_up_prompts
from fusewire.placement import Placement

from tests.models.paged_texts import Logits, PagedTexts
from tests.models.tiny_decoders import LONGEST, tiny_decoder
from tests.places import GPU, GPU_FP32
from tests.tolerance import GPU_BATCHED_VERSUS_ALONE

SEQUENCES = 12


def some_steps(texts: PagedTexts, seed: int = 0) -> list[list[Logits]]:
    """Runs prompts, then single tokens of random choices of sequences, to the end of the
    shortest."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return rng.integers(0, texts.model.vocab_size, count).tolist()

    answers = [texts.step([(i, ids(1 + i)) for i in range(SEQUENCES)])]
    while max(texts.lengths) < LONGEST:
        some = rng.permutation(SEQUENCES)[: rng.integers(1, SEQUENCES + 1)]
        answers.append(texts.step([(i, ids(1)) for i in some.tolist()]))
    return answers


def recorded(texts: PagedTexts, max_sequences: int = SEQUENCES) -> StepReplays:
    texts.model.record_steps(texts.cache, max_sequences, max_tokens=40)
    assert texts.model._replays is not None
    return texts.model._replays


@pytest.fixture
def gpt2(tmp_path, place: Placement) -> DecoderModel:
    tiny_decoder(tmp_path, "gpt2")
    return load_decoder(tmp_path, place)


def test_short_targets_have_short_tables_beside_long_sources_too():
    assert step_replay.table_widths(3) == (128,)
    assert step_replay.table_widths(129) == (256,)
    assert step_replay.table_widths(3, 8) == (8, 8)
    assert step_replay.table_widths(8, 9) == (8, 128)
    assert step_replay.table_widths(9, 3) == (128, 128)
    assert step_replay.table_widths(200, 300) == (256, 512)


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("model_type", DECODERS)
def test_recorded_steps_are_the_eager_ones(tmp_path, model_type, place, monkeypatch):
    monkeypatch.setattr(step_replay, "LEAST_PAGES", 2)  # so that sequences exceed it
    tiny_decoder(tmp_path, model_type)
    model = load_decoder(tmp_path, place)
    eager = some_steps(PagedTexts(model, SEQUENCES))
    texts = PagedTexts(model, SEQUENCES)
    replays = recorded(texts, max_sequences=10)  # some steps are too large for capture
    # In 16 bits the kernels are the same, because GEMM kernels are selected for the same number of
    # rows.
    allowed = GPU_BATCHED_VERSUS_ALONE if place.dtype == "float32" else 0
    for one, other in zip(some_steps(texts), eager, strict=True):
        for got, wanted in zip(one, other, strict=True):
            assert np.abs(got - wanted).max() <= allowed * np.abs(wanted).max()
    assert replays.hits > 0
    assert len({bucket.pages for bucket in replays.recorded}) > 1


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_short_steps_of_every_size_are_recorded_before_the_first(gpt2, monkeypatch):
    monkeypatch.setattr(step_replay, "LEAST_PAGES", 1024)
    texts = PagedTexts(gpt2, SEQUENCES)
    recorded(texts)
    texts.step([(i, [1, 2]) for i in range(SEQUENCES)])
    for count in range(1, SEQUENCES + 1):
        texts.step([(i, [3]) for i in range(count)])
    # Up to 8 sequences have a graph each; 9 to 12 share that of 16.
    assert gpt2.replay_counts == (SEQUENCES, 0, sum(16 - count for count in range(9, 13)))


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_steps_with_another_cache_or_other_rows_are_not_replayed(gpt2):
    texts, others = PagedTexts(gpt2, 3), PagedTexts(gpt2, 3)
    replays = recorded(texts)
    one_each = [(i, [i]) for i in range(3)]
    others.step(one_each)
    texts.step([(0, [1, 2]), (1, [1])])
    assert (replays.hits, replays.misses) == (0, 0)
    texts.step(one_each)
    assert (replays.hits, replays.misses) == (1, 0)


def test_prompts_that_warm_up_have_the_sizes_asked_for(gpt2):
    cache = PagedTexts(gpt2, 2).cache
    steps = list(warm_up_prompts([40, 7, 1], gpt2.max_length, 4, cache))
    assert [(step.tokens, step.logit_rows.tolist()) for step in steps] == [
        (40, [36, 37, 38, 39]),
        (7, [3, 4, 5, 6]),
        (1, [0]),
    ]
    for step in steps:
        assert np.diff(step.cu_seqlens).max() <= gpt2.max_length
        gpt2.step(step, cache)
