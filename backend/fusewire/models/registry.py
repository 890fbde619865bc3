"""The architectures that fusewire can load, one row each, and the tasks of their class names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fusewire.errors import CheckpointError
from fusewire.models import (
    albert,
    bart,
    bert,
    blenderbot,
    clip,
    dinov2,
    distilbert,
    electra,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    m2m_100,
    marian,
    modernbert,
    mpnet,
    opt,
    pegasus,
    phi3,
    roberta,
    siglip,
    t5,
    vit,
    whisper,
)
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config

# Task -> the head of the blueprint that it needs, for encoders of texts.
TASK_HEADS: dict[str, str | None] = {
    "embed": None,
    "hidden": None,
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "fill": "fill",
}
IMAGE_TASKS = ("label", "embed")


@dataclass(frozen=True)
class Row:
    """An encoder: the prefix of its transformers classes (empty if it has no class of its own), its
    blueprint, and its tasks."""

    classes: str
    blueprint: Callable[[Config], Blueprint]
    tasks: tuple[str, ...] = tuple(TASK_HEADS)


@dataclass(frozen=True)
class DecoderRow:
    """A decoder, with or without an encoder: its transformers class with a language-modelling head,
    and its blueprint."""

    causal_class: str
    blueprint: Callable[[Config], Blueprint]


def _encoder_alone(row: DecoderRow) -> Callable[[Config], Blueprint]:
    return lambda config: row.blueprint(config).encoder_alone()


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

# Encoder-decoder models.
SEQ2SEQ: dict[str, DecoderRow] = {
    "bart": DecoderRow("BartForConditionalGeneration", bart.bart),
    "mbart": DecoderRow("MBartForConditionalGeneration", bart.mbart),
    "plbart": DecoderRow("PLBartForConditionalGeneration", bart.plbart),
    "marian": DecoderRow("MarianMTModel", marian.blueprint),
    "m2m_100": DecoderRow("M2M100ForConditionalGeneration", m2m_100.blueprint),
    "pegasus": DecoderRow("PegasusForConditionalGeneration", pegasus.blueprint),
    "blenderbot": DecoderRow("BlenderbotForConditionalGeneration", blenderbot.blenderbot),
    "blenderbot-small": DecoderRow(
        "BlenderbotSmallForConditionalGeneration", blenderbot.blenderbot_small
    ),
    "t5": DecoderRow("T5ForConditionalGeneration", t5.t5),
    "mt5": DecoderRow("MT5ForConditionalGeneration", t5.mt5),
    "umt5": DecoderRow("UMT5ForConditionalGeneration", t5.umt5),
}

# Encoder-decoder models of speech.
SPEECH: dict[str, DecoderRow] = {
    "whisper": DecoderRow("WhisperForConditionalGeneration", whisper.blueprint),
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

_WITH_ENCODER = {**SEQ2SEQ, **SPEECH}

# The encoders of encoder-decoder models, in a folder of their own or of the whole model.
_HEADLESS = tuple(task for task, head in TASK_HEADS.items() if head is None)
_ENCODER_CLASSES = {"t5": "T5Encoder", "mt5": "MT5Encoder", "umt5": "UMT5Encoder"}
SEQ2SEQ_ENCODERS: dict[str, Row] = {
    model_type: Row(_ENCODER_CLASSES.get(model_type, ""), _encoder_alone(row), _HEADLESS)
    for model_type, row in SEQ2SEQ.items()
}

# Encoders of images.
IMAGE_ENCODERS: dict[str, Row] = {
    "vit": Row("ViT", vit.vit, IMAGE_TASKS),
    "deit": Row("DeiT", vit.deit, IMAGE_TASKS),
    "dinov2": Row("Dinov2", dinov2.blueprint, IMAGE_TASKS),
    "clip": Row("CLIP", clip.vision, IMAGE_TASKS),
    "clip_vision_model": Row("CLIPVision", clip.vision_alone, ("embed",)),
    "siglip": Row("Siglip", siglip.vision, IMAGE_TASKS),
    "siglip_vision_model": Row("SiglipVision", siglip.vision_alone, ("embed",)),
}
# Encoders of the texts that are compared with images.
TEXT_TOWERS: dict[str, Row] = {
    "clip": Row("CLIP", clip.text),
    "siglip": Row("Siglip", siglip.text),
}

# Suffix of a class name -> the task that the class was made for.
_DEFAULT_TASKS = {
    "Model": "embed",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
    "ForMaskedLM": "fill",
}
_IMAGE_TASKS = {
    "Model": "embed",
    "ModelWithProjection": "embed",
    "ForImageClassification": "label",
    "ForImageClassificationWithTeacher": "label",
}
# These classes have a masked-language head too; ElectraForPreTraining does not.
_PRETRAINING = {"BertForPreTraining": "fill", "AlbertForPreTraining": "fill"}


def architecture(config: Mapping[str, Any], task: str) -> Row:
    """Returns the row of an encoder's config.json. Raises CheckpointError when there is none for
    the task, or when the model is causal."""
    row = _row({**ARCHITECTURES, **SEQ2SEQ_ENCODERS}, config)
    _held(config, "is_decoder", False)
    if task not in row.tasks:
        raise CheckpointError(
            f"config.json: model_type: got {config['model_type']}, which has no head for {task}, "
            f"wanted one of {', '.join(ARCHITECTURES)}; choose one of the tasks "
            f"{', '.join(row.tasks)}"
        )
    return row


def decoder(config: Mapping[str, Any]) -> DecoderRow:
    """Returns the row of a decoder's config.json, with or without an encoder. Raises
    CheckpointError when there is none, or when it is not causal."""
    row = _row({**DECODERS, **_WITH_ENCODER}, config)
    _held(config, "is_causal", True)  # transformers reads it in every decoder
    _held(config, "is_encoder_decoder", config["model_type"] in _WITH_ENCODER)
    return row


def image_encoder(config: Mapping[str, Any]) -> Row:
    """Returns the row of the config.json of an encoder of images. Raises CheckpointError when there
    is none."""
    return _row(IMAGE_ENCODERS, config)


def reads_images(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is that of an encoder of images."""
    return model_kind(config) == "images"


def reads_speech(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is that of a model that transcribes speech."""
    return model_kind(config) == "speech"


def model_kind(config: Mapping[str, Any]) -> str | None:
    """Returns the kind of this config.json's model: encoder, decoder, encoder-decoder (of texts),
    images or speech; None if its type is not known."""
    model_type = config.get("model_type")
    tables: dict[str, Mapping[str, Row | DecoderRow]] = {
        "encoder": ARCHITECTURES,
        "decoder": DECODERS,
        "encoder-decoder": SEQ2SEQ,
        "images": IMAGE_ENCODERS,
        "speech": SPEECH,
    }
    return next((kind for kind, table in tables.items() if model_type in [*table]), None)


def encoder_of_texts(config: Mapping[str, Any]) -> Row:
    """Returns the row of the config.json of a model of images and texts. Raises CheckpointError
    when there is none."""
    return _row(TEXT_TOWERS, config)


def check_config(config: Mapping[str, Any]) -> None:
    """Raises CheckpointError if this config.json gives no model for any task."""
    _rows(config)[0].blueprint(Config(config))


def tasks_of(config: Mapping[str, Any]) -> str:
    """Returns the task that a checkpoint was made for, by the class in its `architectures`.

    Raises CheckpointError when the class is not known or serves no task (a task can still be asked
    for by name, e.g. `embed`).
    """
    rows = _rows(config)
    known: dict[str, str] = {}
    others: dict[str, str] = {}
    for row in rows:
        own, more = _task_classes(row)
        known |= own
        others |= more
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    task = (others | known).get(name) if isinstance(name, str) else None
    if task is None:
        served = [task for row in rows for task in tasks_served(row)]
        raise CheckpointError(
            f"config.json: architectures: got {str(name)[:80]!r}, wanted one of "
            f"{', '.join(known)}; name the task yourself ({', '.join(served)})"
        )
    return task


def tasks_served(row: Row | DecoderRow) -> list[str]:
    """Returns the tasks that checkpoints of the architecture can be loaded for by the row."""
    return list(row.tasks) if isinstance(row, Row) else [_task_of(row)]


def _task_of(row: DecoderRow) -> str:
    return "transcribe" if row in SPEECH.values() else "generate"


def _task_classes(row: Row | DecoderRow) -> tuple[dict[str, str], dict[str, str]]:
    """Returns class name -> task: the architecture's own, and those with an additional head."""
    if isinstance(row, DecoderRow):
        return {row.causal_class: _task_of(row)}, {}
    if not row.classes:
        return {}, {}
    of_images = row in IMAGE_ENCODERS.values()
    endings = _IMAGE_TASKS if of_images else _DEFAULT_TASKS
    known = {row.classes + ending: task for ending, task in endings.items() if task in row.tasks}
    return known, {} if of_images else _PRETRAINING


def _held(config: Mapping[str, Any], key: str, wanted: bool) -> None:
    got = config.get(key, wanted)
    if got is not wanted:
        raise Config.fault(key, got, f"{wanted}")


def _rows(config: Mapping[str, Any]) -> list[Row | DecoderRow]:
    """Returns the rows of an architecture; for an encoder-decoder model two: the whole model, and
    its encoder."""
    tables: tuple[Mapping[str, Row | DecoderRow], ...] = (
        ARCHITECTURES,
        SEQ2SEQ,
        SEQ2SEQ_ENCODERS,
        SPEECH,
        DECODERS,
        IMAGE_ENCODERS,
    )
    merged = {name: row for table in tables for name, row in table.items()}
    _row(merged, config)
    return [table[config["model_type"]] for table in tables if config["model_type"] in table]


def _row(rows: Mapping[str, _AnyRow], config: Mapping[str, Any]) -> _AnyRow:
    model_type = config.get("model_type")
    row = rows.get(model_type) if isinstance(model_type, str) else None
    if row is None:
        raise Config.fault("model_type", model_type, f"one of {', '.join(rows)}")
    if model_type not in _WITH_ENCODER:
        _held(config, "is_encoder_decoder", False)
    return row
