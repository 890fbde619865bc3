"""In 16 bits a model is as close to transformers in fp32 as transformers itself is in 16 bits."""

from __future__ import annotations

import pytest
from fusewire.models import load_model
from fusewire.placement import Placement

from tests.models.oracle import (
    RAGGED,
    allowed_errors,
    excess,
    fusewire_answers,
    random_sequences,
)
from tests.places import GPU_HALVES
from tests.reference import ARCHITECTURES, tiny_checkpoint

pytestmark = pytest.mark.parametrize("place", GPU_HALVES, indirect=True)

TASKS = ("hidden", "classify", "tag", "answer", "fill")


def check(folder, architecture: str, task: str, place: Placement, lengths, **sizes) -> None:
    reference = tiny_checkpoint(folder, architecture, task, **sizes).to(place.device)
    model = load_model(folder, task, place, pooler=True)
    sequences = random_sequences(model, lengths)
    allowed = allowed_errors(reference, model, sequences)
    assert not excess(fusewire_answers(model, sequences, task), allowed)
    alone = [fusewire_answers(model, [sequence], task)[0] for sequence in sequences]
    assert not excess(alone, allowed)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_as_right_as_those_of_transformers(tmp_path, architecture, task, place):
    labels = {} if task in ("answer", "hidden", "fill") else {"num_labels": 5}
    check(tmp_path, architecture, task, place, RAGGED, **labels)


@pytest.mark.parametrize(("heads", "head_size"), [(3, 32), (3, 64), (2, 80), (3, 96), (2, 128)])
@pytest.mark.parametrize("architecture", ["bert", "mpnet", "modernbert"])
def test_head_sizes(tmp_path, architecture, heads, head_size, place):
    sizes = {"hidden_size": heads * head_size, "num_attention_heads": heads, "max_length": 515}
    check(tmp_path, architecture, "hidden", place, (515, 1, 129, 64, 300), **sizes)


def test_rotary_positions_hold_to_the_end_of_8192_tokens(tmp_path, place):
    sizes = {"max_length": 8192, "local_attention": 128}
    check(tmp_path, "modernbert", "hidden", place, (8192, 3), **sizes)
