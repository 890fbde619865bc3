"""Captured forwards (CUDA graphs) answer as eager ones; they are few and compute few padding
tokens."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.batch import Batch, Sequence
from fusewire.models import EncoderModel, load_model, recordings, replay
from fusewire.placement import Placement

from tests.models.oracle import (
    Answers,
    allowed_errors,
    differences,
    excess,
    fusewire_answers,
    random_sequences,
)
from tests.places import GPU, GPU_FP32
from tests.reference import ARCHITECTURES, tiny_checkpoint
from tests.tolerance import GPU_BATCHED_VERSUS_ALONE, PADDING_SHARE

WORK = [(1,), (64,), (7,), (3, 1, 60), (20,) * 5, (33, 33, 2), (1,) * 40, (64,) * 17, (5, 64)]


def recorded(model: EncoderModel) -> replay.Replays:
    model.record_forwards()
    assert model._replays is not None
    return model._replays


def answers(model: EncoderModel, sequences: list[Sequence]) -> Answers:
    return fusewire_answers(model, sequences, "hidden")


def check(folder: Path, architecture: str, place: Placement, work: list, **sizes: Any) -> None:
    reference = tiny_checkpoint(folder, architecture, "hidden", **sizes).to(place.device)
    model = load_model(folder, "hidden", place, pooler=True)
    batches = [random_sequences(model, lengths, seed) for seed, lengths in enumerate(work)]
    eager = [answer for sequences in batches for answer in answers(model, sequences)]
    every = [sequence for sequences in batches for sequence in sequences]
    exact = place.dtype == "float32"
    allowed = {} if exact else allowed_errors(reference, model, every)
    replays = recorded(model)
    for _ in range(3):  # a bucket is first only counted, then captured, then replayed
        got = [answer for sequences in batches for answer in answers(model, sequences)]
        assert not excess(got, allowed)
        if exact:
            for name, difference in differences(got, eager).items():
                assert difference <= GPU_BATCHED_VERSUS_ALONE, name
    assert replays.hits >= len(work)


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recorded_answers_are_the_eager_ones(tmp_path, architecture, place):
    check(tmp_path, architecture, place, WORK)


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
@pytest.mark.parametrize(("longest", "work"), [(50, [(50, 50, 3), (33, 40)]), (20, [(20, 20, 5)])])
@pytest.mark.parametrize("architecture", ["bert", "mpnet", "modernbert"])
def test_a_bucket_is_no_longer_than_the_model(tmp_path, architecture, longest, work, place):
    check(tmp_path, architecture, place, work, max_length=longest)


@pytest.fixture
def bert(tmp_path: Path, place: Placement) -> EncoderModel:
    tiny_checkpoint(tmp_path, "bert", "hidden")
    return load_model(tmp_path, "hidden", place)


def one(model: EncoderModel, length: int) -> list[Sequence]:
    return random_sequences(model, (length,), seed=length)


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
@pytest.mark.parametrize("depth", [12, 23])  # so many runs that the workspace may shrink
def test_one_sequence_alone_is_recorded_from_the_start(tmp_path, depth, place):
    sizes = {"max_length": 512, "num_hidden_layers": depth, "hidden_size": 256}
    tiny_checkpoint(tmp_path, "bert", "hidden", **sizes)
    model = load_model(tmp_path, "hidden", place)
    replays = recorded(model)
    lengths = [*range(1, 65), *range(66, 129, 2), *range(132, 257, 4), *range(264, 513, 8)]
    assert len(replays.recorded) == len(lengths)
    for length in lengths:
        model.encode(Batch.pack(one(model, length)))
        assert model.computed_tokens == length
    assert (replays.hits, replays.misses) == (len(lengths), 0)


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_recordings_are_bounded_and_the_least_recently_used_goes(bert, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_RECORDINGS", 4)
    eager = {length: answers(bert, one(bert, length)) for length in (3, 4, 5)}
    replays = recorded(bert)

    def hits(length: int) -> bool:
        before = replays.hits
        (difference, *_) = differences(answers(bert, one(bert, length)), eager[length]).values()
        assert difference <= GPU_BATCHED_VERSUS_ALONE
        assert len(replays.recorded) <= 4
        return replays.hits > before

    assert len(replays.recorded) == 4  # lengths 4, 3, 2, 1, captured in this order
    assert hits(4)
    assert not hits(5)  # only counted
    assert not hits(5)  # captured in place of 3
    assert hits(5)
    assert hits(4)
    assert not hits(3)


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_a_model_with_recordings_goes_with_its_last_user(tmp_path, place):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    model = load_model(tmp_path, "hidden", place)
    recorded(model)
    gone = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_recordings_go_when_the_arena_moves(bert):
    sequences = random_sequences(bert, (9, 30, 2))
    eager = answers(bert, sequences)
    replays = recorded(bert)

    def check() -> None:
        (difference, *_) = differences(answers(bert, sequences), eager).values()
        assert difference <= GPU_BATCHED_VERSUS_ALONE

    for _ in range(3):
        check()
    assert len(replays.recorded) > 1
    growths = bert.workspace_stats()["growths"]
    large = random_sequences(bert, (64,) * 100)  # too large for capture, or for the arena
    bert.encode(Batch.pack(large))
    assert bert.workspace_stats()["growths"] > growths
    for _ in range(3):
        check()
        assert len(replays.recorded) <= 1


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
def test_a_mixed_workload_computes_little_padding(bert):
    replays = recorded(bert)
    rng = np.random.default_rng(0)
    real = computed = 0
    for _ in range(60):
        lengths = rng.integers(1, rng.choice([8, 32, 64]) + 1, rng.integers(1, 33))
        batch = Batch.pack(random_sequences(bert, lengths.tolist()))
        for _ in range(3):
            bert.encode(batch)
            real, computed = real + batch.tokens, computed + bert.computed_tokens
    assert replays.hits >= 60
    assert real <= computed <= (1 + PADDING_SHARE) * real
