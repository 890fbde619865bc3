"""Encoders and decoders straight from Hugging Face folders.

An architecture is one file here (config.json -> Blueprint or DecoderBlueprint) and one row in
`registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.models.blueprint import Blueprint
from fusewire.models.config import Config, read_config
from fusewire.models.decoder import DecoderModel
from fusewire.models.decoder_blueprint import DecoderBlueprint
from fusewire.models.encoder import EncoderModel
from fusewire.models.generation_config import eos_token_ids
from fusewire.models.registry import (
    ARCHITECTURES,
    DECODERS,
    TASK_HEADS,
    architecture,
    decoder,
    tasks_of,
)
from fusewire.placement import Placement
from fusewire.weights import Checkpoint, open_folder

__all__ = [
    "ARCHITECTURES",
    "DECODERS",
    "DecoderModel",
    "EncoderModel",
    "blueprint_of",
    "build_decoder",
    "build_model",
    "check_folder",
    "load_decoder",
    "load_model",
    "read_config",
    "tasks_of",
]


def check_folder(folder: Path | str, task: str) -> None:
    """CheckpointError where `load_model` or `load_decoder` would raise it, found without reading a
    weight: config.json, and the weights' headers against it."""
    values = read_config(folder)
    blueprint = blueprint_of(values, task)
    if isinstance(blueprint, Blueprint):
        tensors, unread = blueprint.tensors(TASK_HEADS[task]), blueprint.other_heads
        Config(values).labels()
    else:
        tensors, unread = blueprint.tensors(), blueprint.unread
        eos_token_ids(folder, blueprint.eos_token_ids)
    Checkpoint.open(folder, blueprint.prefix, blueprint.aliases).check(tensors, unread)


def blueprint_of(values: Mapping[str, Any], task: str) -> Blueprint | DecoderBlueprint:
    """What a config.json says of the model for the task; CheckpointError."""
    row = architecture(values) if task in TASK_HEADS else decoder(values)
    return row.blueprint(Config(values))


def load_model(
    folder: Path | str, task: str, place: Placement | None = None, *, pooler: bool = False
) -> EncoderModel:
    """Loads what `task` (embed, hidden, classify, tag, answer, fill) needs from a model folder.

    Weights are mapped, checked by name and shape, and prepacked in the placement's dtype (by
    default fp32 on the CPU); tensors of other heads are skipped, any other surplus or lack is a
    CheckpointError. `pooler` (for embed and hidden)
    loads the base model's tanh pooler as the head, where the checkpoint holds one.
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
    """As `load_model`, from a live model's configuration and its fp32 arrays by state-dict name."""
    place = place or Placement()
    return _build(
        config, task, place, pooler, None, partial(Checkpoint.from_arrays, arrays, "the model")
    )


def load_decoder(folder: Path | str, place: Placement | None = None) -> DecoderModel:
    """Loads a decoder (task generate) from a model folder, as strictly as `load_model`.

    The tokens that end a text are those of generation_config.json, where the folder has it, as
    transformers' `generate` takes them.
    """
    folder = open_folder(folder)
    values = read_config(folder)
    blueprint = decoder(values).blueprint(Config(values))
    ends = eos_token_ids(folder, blueprint.eos_token_ids)
    return _build_decoder(
        replace(blueprint, eos_token_ids=ends),
        values,
        place,
        folder,
        partial(Checkpoint.open, folder),
    )


def build_decoder(
    config: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    place: Placement | None = None,
) -> DecoderModel:
    """As `load_decoder`, from a live model's configuration and its fp32 arrays by state-dict
    name."""
    return _build_decoder(
        decoder(config).blueprint(Config(config)),
        config,
        place,
        None,
        partial(Checkpoint.from_arrays, arrays, "the model"),
    )


def _build_decoder(
    blueprint: DecoderBlueprint,
    values: Mapping[str, Any],
    place: Placement | None,
    folder: Path | None,
    open_checkpoint: Callable[[str, Mapping[str, str]], Checkpoint],
) -> DecoderModel:
    checkpoint = open_checkpoint(blueprint.prefix, blueprint.aliases)
    return DecoderModel(
        blueprint, checkpoint, place or Placement(), config=dict(values), folder=folder
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
    row = architecture(values)
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
