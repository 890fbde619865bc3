"""config.json of a TensorFlow checkpoint: unchanged, or made from google-research's or OpenAI's
files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.weights.folder import read_json
from fusewire.weights.formats import CONFIG
from fusewire.weights.tensorflow.variable import Variable

# File name in google-research -> model_type, prefix of the classes.
_GOOGLE = {"bert_config.json": ("bert", "Bert"), "albert_config.json": ("albert", "Albert")}
_HEADS = {
    "cls/squad": "ForQuestionAnswering",
    "cls/seq_relationship": "ForPreTraining",
    "cls/predictions": "ForMaskedLM",
}
_OPENAI = "hparams.json"
_HPARAMS = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}


def configuration(folder: Path, variables: Mapping[str, Variable]) -> dict[str, Any]:
    """Returns the values of config.json. Raises CheckpointError if there is no file to make them
    of."""
    values = read_json(folder, CONFIG)
    if values is not None:
        return values
    for name, (model_type, classes) in _GOOGLE.items():
        values = read_json(folder, name)
        if values is not None:
            return {**values, "model_type": model_type, **_head(classes, variables)}
    values = read_json(folder, _OPENAI)
    if values is not None:
        known = {name: values[key] for key, name in _HPARAMS.items() if key in values}
        return {**known, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    wanted = ", ".join((CONFIG, *_GOOGLE, _OPENAI))
    raise CheckpointError(
        f"{folder.name}: got TensorFlow weights without a configuration, wanted one of {wanted}; "
        "copy it into the folder"
    )


def _head(classes: str, variables: Mapping[str, Variable]) -> dict[str, Any]:
    """Returns `architectures`, by the heads in the checkpoint, and the number of labels."""
    if (bias := variables.get("output_bias")) is not None and bias.shape:
        architecture = classes + "ForSequenceClassification"
        return {"architectures": [architecture], "num_labels": bias.shape[0]}
    endings = [ending for head, ending in _HEADS.items() if f"{head}/output_bias" in variables]
    return {"architectures": [classes + (endings or ["Model"])[0]]}
