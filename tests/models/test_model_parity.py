"""Every architecture and head gives the outputs of transformers in fp32, on the CPU and on a
GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from fusewire.batch import Batch
from fusewire.models import load_model
from fusewire.placement import Placement

from tests.models.oracle import RAGGED, fusewire_answers, largest_difference, random_sequences
from tests.places import CPU, GPU_FP32
from tests.reference import ARCHITECTURES, edit_config, tiny_checkpoint
from tests.tolerance import MODEL_FP32

TASKS = ("hidden", "classify", "tag", "answer", "fill")

pytestmark = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
Difference = Callable[..., float]


@pytest.fixture
def difference(tmp_path: Path, place: Placement) -> Difference:
    """difference(architecture, task="hidden", **sizes): the difference between our answers of a
    tiny checkpoint and those of transformers on the same device."""

    def between(architecture: str, task: str = "hidden", **sizes) -> float:
        lengths = sizes.pop("lengths", RAGGED)
        reference = tiny_checkpoint(tmp_path, architecture, task, **sizes).to(place.device)
        model = load_model(tmp_path, task, place, pooler=True)
        return largest_difference(reference, model, task, lengths)

    return between


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_states_and_logits_equal_transformers(difference, architecture, task):
    labels = {} if task in ("answer", "hidden", "fill") else {"num_labels": 5}
    assert difference(architecture, task, **labels) <= MODEL_FP32


# heads, head size, intermediate size; the vocabulary of a tiny checkpoint is odd in any case.
SHAPES = [(1, 32, 40), (3, 64, 100), (5, 80, 77), (2, 6, 3), (2, 96, 96), (1, 128, 200)]


@pytest.mark.parametrize(("heads", "head_size", "intermediate"), SHAPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_odd_sizes(difference, architecture, heads, head_size, intermediate):
    sizes = {
        "hidden_size": heads * head_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "num_hidden_layers": 1,
    }
    lengths = (3, 1, 40)
    assert difference(architecture, lengths=lengths, **sizes) <= MODEL_FP32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_longest_sequence(difference, architecture):
    worst = difference(architecture, max_length=515, lengths=(515, 1, 514))
    assert worst <= MODEL_FP32


def test_rotary_positions_hold_to_the_end_of_8192_tokens(difference):
    sizes = {"max_length": 8192, "hidden_size": 32, "num_attention_heads": 1}
    worst = difference("modernbert", lengths=(8192,), local_attention=128, **sizes)
    assert worst <= MODEL_FP32


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
@pytest.mark.parametrize(
    ("architecture", "key"), [("bert", "hidden_act"), ("modernbert", "hidden_activation")]
)
def test_activations(difference, architecture, key, activation):
    assert difference(architecture, "fill", **{key: activation}) <= MODEL_FP32


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("albert", {"num_hidden_layers": 5, "num_hidden_groups": 3, "inner_group_num": 2}),
        ("electra", {"embedding_size": 64}),
        ("bert", {"type_vocab_size": 1}),
        ("roberta", {"type_vocab_size": 2}),
        ("roberta", {"pad_token_id": 0}),
        ("modernbert", {"num_hidden_layers": 5, "local_attention": 7}),
        ("modernbert", {"layer_types": ["sliding_attention", "sliding_attention"]}),
        (
            "modernbert",
            {
                "norm_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "classifier_bias": True,
                "decoder_bias": False,
                "classifier_activation": "silu",
            },
        ),
    ],
)
def test_options_of_one_architecture(difference, architecture, sizes):
    assert difference(architecture, "fill", **sizes) <= MODEL_FP32


def test_modernbert_pools_by_mean(difference):
    worst = difference("modernbert", "classify", classifier_pooling="mean")
    assert worst <= MODEL_FP32


def test_modernbert_configurations_of_before_transformers_5(tmp_path, place):
    reference = tiny_checkpoint(tmp_path, "modernbert", num_hidden_layers=4)
    edit_config(
        tmp_path,
        rope_parameters=...,
        layer_types=...,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
        global_attn_every_n_layers=3,
    )
    model = load_model(tmp_path, "embed", place)
    assert largest_difference(reference.to(place.device), model, "embed") <= MODEL_FP32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_untied_decoder_keeps_its_own_weights(difference, architecture):
    assert difference(architecture, "fill", tie_word_embeddings=False) <= MODEL_FP32


def test_a_pretraining_checkpoint_fills_masks(tmp_path, place):
    tiny_checkpoint(tmp_path, "bert", "fill")
    both = transformers.BertForPreTraining.from_pretrained(tmp_path)
    both.save_pretrained(tmp_path)
    masked = transformers.BertForMaskedLM.from_pretrained(
        tmp_path, attn_implementation="eager"
    ).eval()
    model = load_model(tmp_path, "fill", place)
    assert largest_difference(masked.to(place.device), model, "fill") <= MODEL_FP32


def test_vocabulary_scores_are_computed_for_chosen_rows_only(tmp_path, place):
    tiny_checkpoint(tmp_path, "bert", "fill")
    model = load_model(tmp_path, "fill", place)
    sequences = random_sequences(model, (4, 7))
    full = np.concatenate([a["logits"] for a in fusewire_answers(model, sequences, "fill")])
    hidden = model.encode(Batch.pack(sequences))
    some = model.place.numpy(model.fill_logits(hidden, np.array([9, 2])))
    assert some.shape == (2, model.vocab_size)
    np.testing.assert_allclose(some, full[[9, 2]], atol=MODEL_FP32, rtol=0)
