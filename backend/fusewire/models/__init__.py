"""Encoders and decoders loaded directly from Hugging Face folders.

An architecture is one file here (config.json -> Blueprint) and one row in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.models.blueprint import Blueprint, Frames
from fusewire.models.config import Config, read_config
from fusewire.models.decoder import DecoderModel
from fusewire.models.encoder import EncoderModel
from fusewire.models.generation_config import eos_token_ids, target_tokens
from fusewire.models.image_folders import (
    image_parts,
    load_image_model,
    load_image_text_model,
    load_text_tower,
)
from fusewire.models.image_model import ImageModel
from fusewire.models.image_text_model import ImageTextModel
from fusewire.models.language_head import with_stored_bias
from fusewire.models.matrices import matrices_of
from fusewire.models.paged_texts import PagedTexts
from fusewire.models.registry import (
    ARCHITECTURES,
    DECODERS,
    TASK_HEADS,
    architecture,
    decoder,
    model_kind,
    reads_images,
    reads_speech,
    tasks_of,
)
from fusewire.models.seq2seq_model import Seq2SeqModel, SourceBatch
from fusewire.models.speech_model import SpeechModel
from fusewire.models.text_tower import TextTower
from fusewire.placement import Placement
from fusewire.weights import Checkpoint, open_folder

__all__ = [
    "ARCHITECTURES",
    "DECODERS",
    "DecoderModel",
    "EncoderModel",
    "ImageModel",
    "ImageTextModel",
    "PagedTexts",
    "Seq2SeqModel",
    "SourceBatch",
    "SpeechModel",
    "TextTower",
    "blueprint_of",
    "build_decoder",
    "build_model",
    "check_folder",
    "load_decoder",
    "load_encoder",
    "load_image_model",
    "load_image_text_model",
    "load_model",
    "load_text_tower",
    "model_kind",
    "read_config",
    "reads_images",
    "reads_speech",
    "tasks_of",
]


def check_folder(folder: Path | str, task: str) -> dict[str, None]:
    """Raises the CheckpointError that `load_model` or `load_decoder` would raise, without reading
    weights: checks config.json, and the headers of the weight files against it. Returns the names
    of the matrices that `quantize` applies to, in order."""
    names: dict[str, None] = {}
    for blueprint, head, checkpoint in _parts(folder, task):
        checkpoint.check(blueprint.tensors(head), blueprint.unread)
        names |= matrices_of(blueprint, head, checkpoint)
    return names


def _parts(folder: Path | str, task: str) -> Sequence[tuple[Blueprint, str | None, Checkpoint]]:
    """Returns what is loaded from a folder: blueprints, each with its head and its checkpoint."""
    values = read_config(folder)
    if reads_images(values):
        return image_parts(folder, task)
    blueprint = blueprint_of(values, task)
    if task in TASK_HEADS:
        head = TASK_HEADS[task]
        Config(values).labels()
    else:
        head = "generate"
        blueprint = _as_generated(folder, blueprint)
    checkpoint = Checkpoint.open(folder, blueprint.prefix, blueprint.aliases)
    if head == "generate":
        blueprint = with_stored_bias(blueprint, checkpoint)
    return [(blueprint, head, checkpoint)]


def blueprint_of(values: Mapping[str, Any], task: str) -> Blueprint:
    """Returns the blueprint of a config.json for the task. Raises CheckpointError if there is
    none."""
    row = architecture(values, task) if task in TASK_HEADS else decoder(values)
    return row.blueprint(Config(values))


def load_encoder(
    folder: Path | str, task: str, place: Placement | None = None
) -> EncoderModel | ImageTextModel:
    """Loads the model that an engine serves for `task`, an encoder of texts or of images depending
    on config.json."""
    if reads_images(read_config(open_folder(folder))):
        return load_image_text_model(folder, task, place)
    return load_model(folder, task, place)


def load_model(
    folder: Path | str, task: str, place: Placement | None = None, *, pooler: bool = False
) -> EncoderModel:
    """Loads what `task` (embed, hidden, classify, tag, answer, fill) needs from a model folder.

    Weights are memory-mapped, checked by name and shape, and prepacked in the placement's dtype (by
    default fp32 on the CPU). Tensors of other heads are skipped; any other unexpected or missing
    tensor raises CheckpointError. `pooler` (for embed and hidden): loads the base model's tanh
    pooler as the head, if the checkpoint has it.
    """
    folder = open_folder(folder)
    place = place or Placement()
    return _build(
        read_config(folder), task, place, pooler, folder, partial(Checkpoint.open, folder)
    )


def build_model(
    config: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    task: str,
    place: Placement | None = None,
    *,
    pooler: bool = False,
) -> EncoderModel:
    """As `load_model`, from the configuration of a live model and its fp32 arrays by state-dict
    name."""
    _check_unquantised(config)
    place = place or Placement()
    return _build(
        config, task, place, pooler, None, partial(Checkpoint.from_arrays, arrays, "the model")
    )


def load_decoder(folder: Path | str, place: Placement | None = None) -> DecoderModel:
    """Loads a decoder (task generate) from a model folder, as strictly as `load_model`; for an
    encoder-decoder architecture a Seq2SeqModel.

    The tokens that end a text, and those that begin a target, are taken from generation_config.json
    if the folder has it, as in transformers' `generate`.
    """
    folder = open_folder(folder)
    values = read_config(folder)
    blueprint = _as_generated(folder, blueprint_of(values, "generate"))
    checkpoint = Checkpoint.open(folder, blueprint.prefix, blueprint.aliases)
    model = _decoder_class(blueprint)
    return model(blueprint, checkpoint, place or Placement(), config=values, folder=folder)


def build_decoder(
    config: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    place: Placement | None = None,
) -> DecoderModel:
    """As `load_decoder`, from the configuration of a live model and its fp32 arrays by state-dict
    name."""
    _check_unquantised(config)
    blueprint = blueprint_of(config, "generate")
    checkpoint = Checkpoint.from_arrays(arrays, "the model", blueprint.prefix, blueprint.aliases)
    place = place or Placement()
    model = _decoder_class(blueprint)
    return model(blueprint, checkpoint, place, config=dict(config), folder=None)


def _check_unquantised(config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a quantised live model, whose arrays are not its weights."""
    key = "quantization_config"
    if config.get(key) is not None:
        raise Config.fault(key, config[key], "None in a live model (its folder can be loaded)")


def _decoder_class(blueprint: Blueprint) -> type[DecoderModel]:
    if blueprint.encoder is None:
        return DecoderModel
    return SpeechModel if isinstance(blueprint.encoder.embeddings, Frames) else Seq2SeqModel


def _as_generated(folder: Path | str, blueprint: Blueprint) -> Blueprint:
    """Returns the blueprint with the special tokens of generation_config.json."""
    target = blueprint.target
    return replace(
        blueprint,
        eos_token_ids=eos_token_ids(folder, blueprint.eos_token_ids),
        target=None if target is None else target_tokens(folder, target),
    )


def _build(
    values: Mapping[str, Any],
    task: str,
    place: Placement,
    pooler: bool,
    folder: Path | None,
    open_checkpoint: Callable[[str, Mapping[str, str]], Checkpoint],
) -> EncoderModel:
    if task not in TASK_HEADS:
        raise ConfigurationError(
            f"task: got {task!r}, wanted one of {', '.join(TASK_HEADS)}; choose one of these"
        )
    row = architecture(values, task)
    config = Config(values)
    blueprint = row.blueprint(config)
    checkpoint = open_checkpoint(blueprint.prefix, blueprint.aliases)
    head = TASK_HEADS[task]
    if head is None and pooler and "pooler" in blueprint.task_heads:
        wanted = blueprint.tensors("pooler").keys() - blueprint.tensors(None).keys()
        head = "pooler" if all(name in checkpoint for name in wanted) else None
    return EncoderModel(
        blueprint,
        checkpoint,
        head,
        place,
        config=dict(values),
        folder=folder,
        id2label=config.labels(),
    )
