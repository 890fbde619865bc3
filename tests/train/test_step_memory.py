"""The recorded buckets of a step share the memory of the largest."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from fusewire import kernels, train
from fusewire.train.recording import Recording

from tests.tolerance import PEAK_OF_ALL_BUCKETS
from tests.train.test_step import ON_EACH, prepare
from tests.train.tiny_models import ragged

BERT, BART, GPT = "BertForSequenceClassification", "BartForConditionalGeneration", "GPT2LMHeadModel"
RISING = [(9, 5), (20, 9), (33, 20), (40, 33, 9), (40,) * 4, (40,) * 6]
LARGER: dict[str, dict[str, Any]] = {
    BERT: {"hidden_size": 256, "intermediate_size": 1024},
    GPT: {"n_embd": 256, "vocab_size": 8192},
}
ORDERS = pytest.mark.parametrize(
    "order", [RISING, RISING[::-1], RISING[::2] + RISING[1::2]], ids=["rising", "falling", "mixed"]
)


@ON_EACH
@ORDERS
@pytest.mark.parametrize("name", [BERT, BART])
def test_layers_save_in_the_memory_of_the_largest_bucket(
    name: str, order: list[tuple[int, ...]], device: str
) -> None:
    largest = train.Step(*prepare(name, device))
    largest(ragged(name, RISING[-1]))
    step = train.Step(*prepare(name, device))
    for lengths in order * 3:
        step(ragged(name, lengths))
    assert step._buckets.memory.blocks.bytes == largest._buckets.memory.blocks.bytes > 0


@ON_EACH
def test_a_step_that_fails_gives_its_memory_back(device: str) -> None:
    fails = True

    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = model(**batch).loss
        if fails:
            raise RuntimeError("after the forward")
        return found

    step = train.Step(*prepare(BERT, device), loss=loss)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="after the forward"):
            step(ragged(BERT))
    once = step._buckets.memory.blocks.bytes
    fails = False
    for _ in range(3):
        step(ragged(BERT))
    assert step._buckets.memory.blocks.bytes == once


def test_the_memory_of_a_step_goes_with_it() -> None:
    allocator = kernels.default_allocator()
    gc.collect()  # steps of other tests hold memory too
    before = allocator.stats()["reserved_bytes"]
    step = train.Step(*prepare(BERT, "cpu"))
    step(ragged(BERT, (40,) * 60))
    held = allocator.stats()["reserved_bytes"] - before
    assert held >= step._buckets.memory.blocks.bytes > 1 << 20
    freed = step._buckets.memory.blocks.bytes
    del step
    gc.collect()
    assert allocator.stats()["reserved_bytes"] <= before + held - freed


class Uncaptured(train.Step):
    def _run(self, recording: Recording, *, updates: bool = False) -> torch.Tensor:
        recording.seen = False
        return super()._run(recording, updates=updates)


@pytest.mark.gpu
@ORDERS
@pytest.mark.parametrize("name", [BERT, BART])
@pytest.mark.parametrize("count", [1, 3], ids=["single", "accumulated"])
def test_curves_are_those_of_steps_that_are_not_recorded(
    name: str, order: list[tuple[int, ...]], count: int
) -> None:
    """To the bit, where buckets are first seen, outgrown and recorded again in any order."""
    model, optimizer = prepare(name, "cuda")
    twin, other = prepare(name, "cuda")
    twin.load_state_dict(model.state_dict())
    step, uncaptured = train.Step(model, optimizer), Uncaptured(twin, other)
    sequence = [*order[:2] * 3, *order * 3, *order[::-1] * 2]
    for number in range(len(sequence)):
        several = [ragged(name, lengths) for lengths in sequence[number:][:count]]
        given = several if count > 1 else several[0]
        assert torch.equal(step(given), uncaptured(given))
    assert step.replays > len(sequence) / 2
    assert uncaptured.replays == 0
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.gpu
@ORDERS
@pytest.mark.parametrize("name", [BERT, GPT])
def test_the_peak_is_that_of_the_largest_bucket(name: str, order: list[tuple[int, ...]]) -> None:
    """Counts torch's memory too: logits, gradients of hidden states, and its cache of them."""

    def peak(lengths: list[tuple[int, ...]]) -> int:
        model, optimizer = prepare(name, "cuda", **LARGER[name])
        step = train.Step(model, optimizer)
        allocator = kernels.default_allocator("cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        allocator.trim()
        allocator.reset_peaks()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved() + allocator.stats()["reserved_bytes"]
        for each in lengths:
            step(ragged(name, each * 32))
        ours = allocator.stats()["peak_reserved_bytes"]
        return torch.cuda.max_memory_reserved() + ours - before

    alone = peak([RISING[-1]] * 3)
    assert peak([*order * 3, *order[::-1] * 2]) <= PEAK_OF_ALL_BUCKETS * alone
