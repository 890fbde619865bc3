"""Architectures fusewire can load: a row each, and what their class names mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.models import albert, bert, distilbert, electra, modernbert, mpnet, roberta
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config


@dataclass(frozen=True)
class Row:
    """One architecture: the prefix of its transformers classes, and its blueprint."""

    classes: str
    blueprint: Callable[[Config], Blueprint]


# By `model_type` of config.json.
ARCHITECTURES: dict[str, Row] = {
    "bert": Row("Bert", bert.blueprint),
    "roberta": Row("Roberta", roberta.blueprint),
    "xlm-roberta": Row("XLMRoberta", roberta.blueprint),
    "camembert": Row("Camembert", roberta.blueprint),
    "distilbert": Row("DistilBert", distilbert.blueprint),
    "albert": Row("Albert", albert.blueprint),
    "electra": Row("Electra", electra.blueprint),
    "mpnet": Row("MPNet", mpnet.blueprint),
    "modernbert": Row("ModernBert", modernbert.blueprint),
}

# Task -> the head of the blueprint it needs.
TASK_HEADS: dict[str, str | None] = {
    "embed": None,
    "hidden": None,
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "fill": "fill",
}

# What a class name ends with -> the task it was made for.
_DEFAULT_TASKS = {
    "Model": "embed",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
    "ForMaskedLM": "fill",
}
# These hold a masked-language head too; ElectraForPreTraining does not.
_PRETRAINING = {"BertForPreTraining": "fill", "AlbertForPreTraining": "fill"}


def architecture(config: Mapping[str, Any]) -> Row:
    """The row of a config.json; CheckpointError when there is none."""
    model_type = config.get("model_type")
    row = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if row is None:
        raise Config.fault("model_type", model_type, f"one of {', '.join(ARCHITECTURES)}")
    return row


def tasks_of(config: Mapping[str, Any]) -> str:
    """The task a checkpoint was made for, by the class in its `architectures`.

    Raises CheckpointError when the class is not known or serves no task (then one can still be
    asked for by name, e.g. `embed`).
    """
    row = architecture(config)
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    task = _PRETRAINING.get(name) if isinstance(name, str) else None
    for ending, default in _DEFAULT_TASKS.items():
        if name == row.classes + ending:
            task = default
    if task is None:
        known = ", ".join(row.classes + ending for ending in _DEFAULT_TASKS)
        raise CheckpointError(
            f"config.json: architectures: got {str(name)[:80]!r}, wanted one of {known}; "
            f"name the task yourself ({', '.join(TASK_HEADS)})"
        )
    return task
