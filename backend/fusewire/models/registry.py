"""Architectures fusewire can load: a row each, and what their class names mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fusewire.errors import CheckpointError
from fusewire.models import (
    albert,
    bert,
    distilbert,
    electra,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    modernbert,
    mpnet,
    opt,
    phi3,
    roberta,
)
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import DecoderBlueprint


@dataclass(frozen=True)
class Row:
    """An encoder: the prefix of its transformers classes, and its blueprint."""

    classes: str
    blueprint: Callable[[Config], Blueprint]


@dataclass(frozen=True)
class DecoderRow:
    """A decoder: its transformers class with a language-modelling head, and its blueprint."""

    causal_class: str
    blueprint: Callable[[Config], DecoderBlueprint]


_AnyRow = TypeVar("_AnyRow", Row, DecoderRow, Row | DecoderRow)

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

DECODERS: dict[str, DecoderRow] = {
    "gpt2": DecoderRow("GPT2LMHeadModel", gpt2.blueprint),
    "gpt_neox": DecoderRow("GPTNeoXForCausalLM", gpt_neox.blueprint),
    "opt": DecoderRow("OPTForCausalLM", opt.blueprint),
    "llama": DecoderRow("LlamaForCausalLM", llama.llama),
    "mistral": DecoderRow("MistralForCausalLM", llama.mistral),
    "qwen2": DecoderRow("Qwen2ForCausalLM", llama.qwen2),
    "qwen3": DecoderRow("Qwen3ForCausalLM", llama.qwen3),
    "gemma2": DecoderRow("Gemma2ForCausalLM", gemma2.blueprint),
    "gemma3_text": DecoderRow("Gemma3ForCausalLM", gemma3.blueprint),
    "phi3": DecoderRow("Phi3ForCausalLM", phi3.blueprint),
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
    """The row of an encoder's config.json; CheckpointError when there is none, or when its tokens
    see only those before them."""
    row = _row(ARCHITECTURES, config)
    _held(config, "is_decoder", False)
    return row


def decoder(config: Mapping[str, Any]) -> DecoderRow:
    """The row of a decoder's config.json; CheckpointError when there is none, or when it is
    not causal."""
    row = _row(DECODERS, config)
    _held(config, "is_causal", True)  # transformers reads it in every decoder
    return row


def check_config(config: Mapping[str, Any]) -> None:
    """CheckpointError where no model for any task can be made after this config.json."""
    _any_row(config).blueprint(Config(config))


def tasks_of(config: Mapping[str, Any]) -> str:
    """The task a checkpoint was made for, by the class in its `architectures`.

    Raises CheckpointError when the class is not known or serves no task (then one can still be
    asked for by name, e.g. `embed`).
    """
    row = _any_row(config)
    known, others = _task_classes(row)
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    task = (known | others).get(name) if isinstance(name, str) else None
    if task is None:
        raise CheckpointError(
            f"config.json: architectures: got {str(name)[:80]!r}, wanted one of "
            f"{', '.join(known)}; name the task yourself ({', '.join(tasks_served(row))})"
        )
    return task


def tasks_served(row: Row | DecoderRow) -> list[str]:
    """Every task that checkpoints of the architecture can be loaded for."""
    return list(TASK_HEADS) if isinstance(row, Row) else ["generate"]


def _task_classes(row: Row | DecoderRow) -> tuple[dict[str, str], dict[str, str]]:
    """Class name -> task: the architecture's own, and those with a head more than is needed."""
    if isinstance(row, DecoderRow):
        return {row.causal_class: "generate"}, {}
    return {row.classes + ending: task for ending, task in _DEFAULT_TASKS.items()}, _PRETRAINING


def _held(config: Mapping[str, Any], key: str, wanted: bool) -> None:
    got = config.get(key, wanted)
    if got is not wanted:
        raise Config.fault(key, got, f"{wanted}")


def _any_row(config: Mapping[str, Any]) -> Row | DecoderRow:
    rows: dict[str, Row | DecoderRow] = {**ARCHITECTURES, **DECODERS}
    return _row(rows, config)


def _row(rows: Mapping[str, _AnyRow], config: Mapping[str, Any]) -> _AnyRow:
    model_type = config.get("model_type")
    row = rows.get(model_type) if isinstance(model_type, str) else None
    if row is None:
        raise Config.fault("model_type", model_type, f"one of {', '.join(rows)}")
    return row
