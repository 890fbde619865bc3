"""Every tensor is wanted, known to be skipped, or an error with its name."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.errors import CheckpointError
from fusewire.weights import Checkpoint


def checkpoint(*names: str, prefix: str = "bert", aliases: dict | None = None) -> Checkpoint:
    arrays = {name: np.full((2, 3), index, np.float32) for index, name in enumerate(names)}
    return Checkpoint.from_arrays(arrays, "model.safetensors", prefix, aliases)


def test_the_base_prefix_is_optional():
    for name in ("bert.encoder.weight", "encoder.weight"):
        held = checkpoint(name)
        held.check({"encoder.weight": (2, 3)}, [])
        assert held.take("encoder.weight").shape == (2, 3)


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(CheckpointError, match=r"two tensors for 'encoder.weight'"):
        checkpoint("bert.encoder.weight", "encoder.weight")


def test_layer_norms_of_tensorflow_conversions_are_renamed():
    held = checkpoint("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.beta")
    held.check({"embeddings.LayerNorm.weight": (2, 3), "embeddings.LayerNorm.bias": (2, 3)}, [])
    assert (held.take("embeddings.LayerNorm.bias") == 1).all()


def test_all_faults_are_listed_at_once():
    held = checkpoint("a", "b", "odd.one")
    with pytest.raises(CheckpointError) as caught:
        held.check({"a": (2, 3), "b": (3, 3), "c": (1,)}, ["cls."])
    text = str(caught.value)
    assert "missing: c [1]" in text
    assert "b: got [2, 3], wanted [3, 3]" in text
    assert "unexpected: 'odd.one'" in text
    assert text.startswith("model.safetensors: ")


def test_long_lists_are_cut():
    with pytest.raises(CheckpointError, match=r"and 12 more"):
        checkpoint(*(f"t{index}" for index in range(20))).check({}, [])


def test_buffers_and_other_heads_are_skipped():
    held = checkpoint("a", "bert.embeddings.position_ids", "cls.predictions.bias")
    held.check({"a": (2, 3)}, ["cls."])
    with pytest.raises(CheckpointError, match=r"unexpected: 'cls.predictions.bias'"):
        held.check({"a": (2, 3)}, [])


def test_a_tied_tensor_is_found_under_either_name():
    tie = {"decoder.weight": "word.weight"}
    wanted = {"decoder.weight": (2, 3), "word.weight": (2, 3)}
    for name in ("bert.word.weight", "decoder.weight"):
        held = checkpoint(name, aliases=tie)
        held.check(wanted, [])
        np.testing.assert_array_equal(held.take("decoder.weight"), held.take("word.weight"))


def test_a_stored_tensor_wins_over_its_tie():
    held = checkpoint("word.weight", "decoder.weight", aliases={"decoder.weight": "word.weight"})
    assert (held.take("decoder.weight") == 1).all()


def test_an_odd_name_is_shown_harmlessly():
    with pytest.raises(CheckpointError) as caught:
        checkpoint("x\x1b[31m\n" + "y" * 500).check({}, [])
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
