"""TensorFlow's names become Hugging Face's, and matrices their layout."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire.errors import CheckpointError
from fusewire.weights.tensorflow.names import tensors_of
from fusewire.weights.tensorflow.variable import Variable, part_of


def variable(array: np.ndarray) -> Variable:
    return Variable("F32", array.shape, part_of(array))


def renamed(name: str, model_type: str = "bert") -> str:
    (found,) = tensors_of([(name, variable(np.ones(2)))], model_type, [], "f")
    return found


NAMES = {
    "tf_bert_model/bert/encoder/layer_._11/attention/self/query/kernel:0": (
        "bert.encoder.layer.11.attention.self.query.weight"
    ),
    "tf_bert_for_masked_lm/mlm___cls/predictions/transform/LayerNorm/gamma:0": (
        "cls.predictions.transform.LayerNorm.weight"
    ),
    "tf_bert_model_3/bert/embeddings/position_embeddings/embeddings:0": (
        "bert.embeddings.position_embeddings.weight"
    ),
    "tf_bert_for_pre_training/nsp___cls/seq_relationship/bias:0": "cls.seq_relationship.bias",
    "tfxlm_roberta_model/roberta/pooler/dense/bias:0": "roberta.pooler.dense.bias",
    "tfmp_net_model/mpnet/encoder/relative_attention_bias/embeddings:0": (
        "mpnet.encoder.relative_attention_bias.weight"
    ),
    "tfgp_t2lm_head_model/transformer/h_._0/ln_1/beta:0": "transformer.h.0.ln_1.bias",
    "bert/encoder/layer_._0/output/dense/kernel:0": "bert.encoder.layer.0.output.dense.weight",
    "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "bert/encoder/layer_10/attention/output/LayerNorm/beta": (
        "bert.encoder.layer.10.attention.output.LayerNorm.bias"
    ),
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/squad/output_weights": "qa_outputs.weight",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "discriminator_predictions/dense_1/kernel": (
        "discriminator_predictions.dense_prediction.weight"
    ),
    "generator_predictions/output_bias": "generator_lm_head.bias",
    "model/h11/attn/c_attn/w": "transformer.h.11.attn.c_attn.weight",
    "model/h0/ln_2/g": "transformer.h.0.ln_2.weight",
    "model/ln_f/b": "transformer.ln_f.bias",
    "model/wte": "transformer.wte.weight",
    "something/else": "something.else",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_renamed(name):
    assert renamed(name) == NAMES[name]


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("a/kernel", (2, 3), (3, 2)),
        ("a/kernel:0", (2, 3), (3, 2)),
        ("a/weight", (2, 3), (2, 3)),
        ("output_weights", (2, 3), (2, 3)),
        ("model/h0/attn/c_attn/w", (1, 2, 3), (2, 3)),
        ("a/c_attn/bias", (1, 3), (3,)),
        ("a/bias", (3,), (3,)),
    ],
)
def test_a_matrix_gets_the_layout_of_hugging_face(name, shape, wanted):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (tensor,) = tensors_of([(name, variable(array))], "bert", [], "f").values()
    assert tensor.shape == wanted
    expected = array.reshape(shape[-2:] if len(wanted) == 2 else wanted)
    if wanted == shape[::-1] and len(shape) == 2:
        expected = expected.T
    np.testing.assert_array_equal(np.concatenate([*tensor.blocks()]), expected)


@pytest.mark.parametrize(
    "name",
    [
        "global_step",
        "learning_rate",
        "bert/pooler/dense/kernel/adam_m",
        "bert/pooler/dense/kernel/AdamWeightDecayOptimizer_1",
        "bert/pooler/dense/kernel/Adam_1",
        "bert/pooler/dense/kernel/ExponentialMovingAverage",
        "beta1_power",
        "Adam/m/bert/pooler/dense/kernel:0",
        "m/tf_bert_model/bert/pooler/dense/kernel",
    ],
)
def test_the_state_of_an_optimizer_is_left_out(name):
    assert tensors_of([(name, variable(np.ones(2)))], "bert", [], "f") == {}


def test_a_tied_variable_may_be_stored_twice():
    one, other = variable(np.arange(6.0)), variable(np.arange(6.0))
    names = ("tf_a/bert/x/weight:0", "tf_b/bert/x/weight:0")
    assert tensors_of(zip(names, (one, other), strict=True), "bert", [], "f").keys() == {
        "bert.x.weight"
    }
    with pytest.raises(CheckpointError, match=r"f: two variables are the tensor 'bert.x.weight'"):
        tensors_of(zip(names, (one, variable(np.ones(6))), strict=True), "bert", [], "f")


def test_an_electra_pair_is_taken_apart():
    pair = {
        "electra/embeddings/word_embeddings": 1,
        "electra/encoder/layer_0/output/dense/bias": 2,
        "generator/encoder/layer_0/output/dense/bias": 3,
        "generator/embeddings_project/bias": 4,
        "generator_predictions/dense/bias": 5,
        "discriminator_predictions/dense/bias": 6,
    }
    variables = [(name, variable(np.full(2, number))) for name, number in pair.items()]

    def taken(architecture: str) -> dict[str, float]:
        tensors = tensors_of(variables, "electra", [architecture], "f")
        return {name: next(tensor.blocks())[0] for name, tensor in tensors.items()}

    assert taken("ElectraForMaskedLM") == {
        "electra.embeddings.word_embeddings.weight": 1,
        "electra.encoder.layer.0.output.dense.bias": 3,
        "electra.embeddings_project.bias": 4,
        "generator_predictions.dense.bias": 5,
    }
    assert taken("ElectraForPreTraining") == {
        "electra.embeddings.word_embeddings.weight": 1,
        "electra.encoder.layer.0.output.dense.bias": 2,
        "generator_predictions.dense.bias": 5,
        "discriminator_predictions.dense.bias": 6,
    }
