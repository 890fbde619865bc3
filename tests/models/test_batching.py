"""The answer for a sequence is the same alone and in a batch, on every instruction set and on a
GPU."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.models import load_model
from fusewire.placement import Placement

from tests.models.oracle import (
    RAGGED,
    allowed_errors,
    differences,
    excess,
    fusewire_answers,
    largest_difference,
    random_sequences,
)
from tests.places import CPU, CPU_TARGETS, GPU_FP32, on_gpu
from tests.reference import ARCHITECTURES, tiny_checkpoint
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("task", ["hidden", "classify", "tag", "answer", "fill"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_sequence_is_answered_alike_alone_and_in_a_batch(
    tmp_path, architecture, task, place: Placement
):
    reference = tiny_checkpoint(tmp_path, architecture, task)
    model = load_model(tmp_path, task, place, pooler=task == "hidden")
    sequences = random_sequences(model, RAGGED, seed=1)
    together = fusewire_answers(model, sequences, task)
    alone = [fusewire_answers(model, [sequence], task)[0] for sequence in sequences]
    if on_gpu(place):
        allowed = allowed_errors(reference.double(), model, sequences)
        assert not excess(together, allowed)
        assert not excess(alone, allowed)
    else:
        for name, difference in differences(alone, together).items():
            assert difference <= BATCHED_VERSUS_ALONE, name


@pytest.mark.parametrize("place", CPU_TARGETS, indirect=True)
@pytest.mark.parametrize("architecture", ["bert", "modernbert", "mpnet"])
def test_every_instruction_set_gives_the_answer(tmp_path, architecture, place):
    reference = tiny_checkpoint(tmp_path, architecture, "hidden")
    model = load_model(tmp_path, "hidden", place, pooler=True)
    assert largest_difference(reference, model, "hidden") <= MODEL_FP32
    model = load_model(tmp_path, "embed", place)
    sequences = random_sequences(model, RAGGED)
    together = fusewire_answers(model, sequences, "embed")
    for sequence, answer in zip(sequences, together, strict=True):
        (alone,) = fusewire_answers(model, [sequence], "embed")
        np.testing.assert_array_equal(alone["last_hidden_state"], answer["last_hidden_state"])
