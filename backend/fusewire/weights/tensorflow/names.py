"""Maps names and layouts of TensorFlow's variables to those of Hugging Face's tensors.

There are three styles: the variables of Hugging Face's own TensorFlow classes
(`tf_bert_model/bert/encoder/layer_._0/attention/self/query/kernel:0`), those of google-research's
BERT, ALBERT and ELECTRA (`bert/encoder/layer_0/attention/self/query/kernel`), and those of OpenAI's
GPT-2 (`model/h0/attn/c_attn/w`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from fusewire.errors import CheckpointError
from fusewire.weights.tensorflow.variable import Named, Tensor, Variable

# States of optimizers, exponential averages, and counters.
_BOOKKEEPING = re.compile(
    r"(^|/)(adam_[mv]|Adam(_1)?|AdamW|LAMB|lamb_[mv]|Adam[A-Za-z]*Optimizer[_0-9]*|Momentum"
    r"|ExponentialMovingAverage|beta[12]_power|global_step|learning_rate|loss_scale|save_counter"
    r"|good_steps|current_loss_scale)(:0)?(/|$)"
    r"|^(m|v|vhat|velocity|momentum)/"  # Keras' optimizers
)
# Patterns for names whose components are separated by `.`, applied in this order.
_RENAMED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\blayer_(\d+)\b", r"layer.\1"),
        # GPT-2
        (r"^model\.h(\d+)\.", r"transformer.h.\1."),
        (r"^model\.(wte|wpe)$", r"transformer.\1.weight"),
        (r"^model\.ln_f\.", r"transformer.ln_f."),
        # BERT
        (r"_embeddings$", r"_embeddings.weight"),
        (r"^cls\.predictions\.output_bias$", r"cls.predictions.bias"),
        (r"^cls\.squad\.output_(weight|bias)s?$", r"qa_outputs.\1"),
        (r"^(cls\.seq_relationship)\.output_(weight|bias)s?$", r"\1.\2"),
        (r"^output_(weight|bias)s?$", r"classifier.\1"),
        # ELECTRA
        (r"^discriminator_predictions\.dense_1\.", r"discriminator_predictions.dense_prediction."),
        (r"^generator_predictions\.output_bias$", r"generator_lm_head.bias"),
        # the last component
        (r"\.(kernel|gamma|g|w|embeddings)$", r".weight"),
        (r"\.(beta|b)$", r".bias"),
    )
]
_ALBERT = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^bert\.", r"albert."),
        (r"^albert\.pooler\.dense\.", r"albert.pooler."),
        (r"^cls\.predictions\.(transform\.)?", r"predictions."),
        (r"^cls\.seq_relationship\.", r"sop_classifier.classifier."),
        (
            r"\.transformer\.group_(\d+)\.inner_group_(\d+)\.",
            r".albert_layer_groups.\1.albert_layers.\2.",
        ),
        (r"(\.albert_layers\.\d+)\.attention_1\.(self\.|output\.)?", r"\1.attention."),
        (r"(\.albert_layers\.\d+)\.ffn_1\.intermediate\.output\.dense\.", r"\1.ffn_output."),
        (r"(\.albert_layers\.\d+)\.ffn_1\.intermediate\.dense\.", r"\1.ffn."),
        (r"(\.albert_layers\.\d+)\.LayerNorm_1\.", r"\1.full_layer_layer_norm."),
        (r"(\.albert_layers\.\d+)\.LayerNorm\.", r"\1.attention.LayerNorm."),
    )
]


def tensors_of(
    variables: Iterable[Named], model_type: str, architectures: Collection[str], source: str
) -> dict[str, Tensor]:
    """Returns the tensors of a model by their names on Hugging Face. Variables that are not weights
    are dropped; a name of an unknown style is not changed. `model_type` and `architectures`: those
    of config.json. `source`: the name of the file in messages. Raises CheckpointError for two
    variables that are the same tensor."""
    masked = any(name.endswith("ForMaskedLM") for name in architectures)
    tensors: dict[str, Tensor] = {}
    for name, variable in _of_one_model(variables, masked):
        tensor = _tensor(name, variable)
        renamed = _renamed(name, model_type)
        known = tensors.setdefault(renamed, tensor)
        # A tied variable is stored once for each layer that shares it.
        if known is not tensor and not _equal(known, tensor):
            raise CheckpointError(
                f"{source}: two variables are the tensor {renamed[:120]!r}, with different values; "
                "save the model again"
            )
    return tensors


def _of_one_model(variables: Iterable[Named], masked: bool) -> list[Named]:
    """Returns the variables without bookkeeping. For ELECTRA's pair of models it returns the
    generator if `masked`, with the embeddings that it shares with the discriminator, else the
    discriminator."""
    weights = [(name, each) for name, each in variables if not _BOOKKEEPING.search(name)]
    generator = [(name, each) for name, each in weights if name.startswith("generator/")]
    if not generator:
        return weights
    if not masked:
        return [(name, each) for name, each in weights if not name.startswith("generator/")]
    renamed = {name.replace("generator/", "electra/", 1): each for name, each in generator}
    shared = re.compile("electra/embeddings/|generator_predictions/")
    lent = {name: each for name, each in weights if shared.match(name)}
    return [*(lent | renamed).items()]


def _renamed(name: str, model_type: str) -> str:
    parts = name.removesuffix(":0").replace("_._", "/").split("/")
    # `mlm___cls` is a layer with the name on the right.
    parts = [part.rpartition("___")[2] for part in parts if part]
    # Drop the class: tf_bert_model, tfgp_t2lm_head_model.
    if len(parts) > 1 and parts[0].startswith("tf"):
        parts = parts[1:]
    path = ".".join(parts)
    for pattern, replacement in [*(_ALBERT if model_type == "albert" else ()), *_RENAMED]:
        path = pattern.sub(replacement, path)
    return path


def _tensor(name: str, variable: Variable) -> Tensor:
    last = name.removesuffix(":0").rpartition("/")[2]
    axes = len(variable.shape)
    # GPT-2's matrices are convolutions of width 1, and their biases are [1, outputs].
    squeezed = axes == {"w": 3, "b": 2, "bias": 2}.get(last) and variable.shape[0] == 1
    return Tensor(variable, transposed=last == "kernel" and axes == 2, squeezed=squeezed)


def _equal(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return all(
        a.tobytes() == b.tobytes() for a, b in zip(one.blocks(), other.blocks(), strict=True)
    )
