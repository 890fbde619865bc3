"""Loads folders of image models: the parts that a task needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fusewire.errors import CheckpointError, ConfigurationError
from fusewire.models.blueprint import Blueprint, Patches
from fusewire.models.config import Config, read_config
from fusewire.models.image_model import ImageModel
from fusewire.models.image_text_model import ImageTextModel
from fusewire.models.registry import IMAGE_TASKS, TEXT_TOWERS, encoder_of_texts, image_encoder
from fusewire.models.text_tower import TextTower
from fusewire.placement import Placement
from fusewire.weights import Checkpoint, open_folder
from fusewire.weights.folder import file_in
from fusewire.weights.formats import TOKENIZER


@dataclass(frozen=True)
class ImageTaskParts:
    """The parts of a folder that a task needs."""

    head: str  # head of the encoder of images
    texts: bool  # whether the encoder of texts is needed too

    @property
    def zero_shot(self) -> bool:
        """Whether the labels are texts of the request (task `label`)."""
        return self.texts and self.head == "embed"


def parts_of(folder: Path | str, task: str) -> ImageTaskParts:
    """Returns what `task` (label, embed) needs. `label` is zero-shot if the model compares images
    with texts and the folder has no classifier. Without a tokenizer the encoder of texts is left
    out, except for zero-shot labels, which need it. Raises CheckpointError."""
    values = read_config(folder)
    images = image_encoder(values).blueprint(Config(values))
    check_task(images, task, values["model_type"])
    if values["model_type"] not in TEXT_TOWERS:
        return ImageTaskParts(task, texts=False)
    if task == "embed":
        return ImageTaskParts(task, texts=file_in(folder, TOKENIZER) is not None)
    checkpoint = Checkpoint.open(folder, images.prefix, images.aliases)
    label = images.tensors("label").keys() - images.tensors(None).keys()
    labelled = any(name in checkpoint for name in label)
    return ImageTaskParts("label" if labelled else "embed", texts=not labelled)


def check_task(images: Blueprint, task: str, model_type: str) -> None:
    """Raises ConfigurationError for a task of texts, CheckpointError for one that the model has no
    head for."""
    if task not in IMAGE_TASKS:
        raise ConfigurationError(
            f"task: got {task!r}, wanted one of {', '.join(IMAGE_TASKS)}; choose one of these"
        )
    if task not in images.task_heads:
        raise CheckpointError(
            f"config.json: {task}: got a {model_type} model, which has no head for it, "
            f"wanted one of {', '.join(images.task_heads)}; choose one of these tasks"
        )


def image_parts(folder: Path | str, task: str) -> list[tuple[Blueprint, str, Checkpoint]]:
    """Returns what `load_image_text_model` loads of a folder, without reading weights: blueprints,
    each with its head and its checkpoint. Raises CheckpointError."""
    parts = parts_of(folder, task)
    values = read_config(folder)
    config = Config(values)
    config.labels()
    towers = [(image_encoder(values).blueprint(config), parts.head)]
    if parts.texts:
        towers.append((encoder_of_texts(values).blueprint(config), "embed"))
    return [
        (blueprint, head, Checkpoint.open(folder, blueprint.prefix, blueprint.aliases))
        for blueprint, head in towers
    ]


def load_image_model(folder: Path | str, task: str, place: Placement | None = None) -> ImageModel:
    """Loads what `task` (label, embed) needs of an encoder of images, as strictly as
    `load_model`."""
    folder = open_folder(folder)
    values = read_config(folder)
    config = Config(values)
    blueprint = image_encoder(values).blueprint(config)
    check_task(blueprint, task, values["model_type"])
    return ImageModel(
        blueprint,
        Checkpoint.open(folder, blueprint.prefix, blueprint.aliases),
        task,
        place or Placement(),
        config=values,
        folder=folder,
        id2label=config.labels(),
    )


def load_text_tower(folder: Path | str, place: Placement | None = None) -> TextTower:
    """Loads the encoder of texts of a model of images and texts (CLIP, SigLIP), as strictly as
    `load_model`."""
    folder = open_folder(folder)
    values = read_config(folder)
    blueprint = encoder_of_texts(values).blueprint(Config(values))
    checkpoint = Checkpoint.open(folder, blueprint.prefix, blueprint.aliases)
    return TextTower(blueprint, checkpoint, place or Placement(), config=values, folder=folder)


def load_image_text_model(
    folder: Path | str, task: str, place: Placement | None = None
) -> ImageTextModel:
    """Loads the model that an engine serves for `task` from a folder of images."""
    place = place or Placement()
    parts = parts_of(folder, task)
    images = load_image_model(folder, parts.head, place)
    texts = load_text_tower(folder, place) if parts.texts else None
    return ImageTextModel(images, texts, trained_size(folder))


def patches_of(folder: Path | str) -> Patches:
    """Returns the input block of an image model's folder, as config.json describes it."""
    values = read_config(folder)
    patches = image_encoder(values).blueprint(Config(values)).stack.embeddings
    assert isinstance(patches, Patches)
    return patches


def trained_size(folder: Path | str) -> tuple[int, int]:
    """Returns (height, width) of the images that the model was trained with."""
    patches = patches_of(folder)
    return patches.grid[0] * patches.size, patches.grid[1] * patches.size
