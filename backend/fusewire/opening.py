"""Which class opens a model folder, by the kind of its model and by its head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.hub import model_folder
from fusewire.models import check_folder, model_kind, read_config, tasks_of

_OF_TEXTS = ("Embedder", "Classifier", "Reranker")
_OF_IMAGES = ("ImageEmbedder", "ImageClassifier", "ZeroShotImageClassifier")
# Kind of model -> what it does, and the classes that open its folder.
_OPENED: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoder": ("reads texts", _OF_TEXTS),
    "decoder": ("writes texts", ("LLM",)),
    "encoder-decoder": ("writes texts", ("LLM", "Embedder")),
    "images": ("reads images", _OF_IMAGES),
    "speech": ("transcribes speech", ("Transcriber",)),
}
# Task that needs a head -> what the head does.
_HEADS = {"classify": "labels texts", "label": "labels images"}
# Kind of model, and the task that its folder was made for -> the classes that open it.
_OF_TASK = {
    ("encoder", "embed"): "Embedder",
    ("encoder", "classify"): "Classifier or Reranker",
    ("images", "embed"): "ImageEmbedder or ZeroShotImageClassifier",
}


def folder_for(opener: type, model: str | Path, revision: str | None) -> Path:
    """Returns the folder of `model` for a class that opens it, for its `_task` if it has one.
    Raises CheckpointError, with the classes to use instead, for a model of another kind, or one
    that was trained for another task. A model that no class opens is refused when it is loaded."""
    folder = model_folder(model, revision=revision)
    config = read_config(folder)
    check_kind(config, {each.__name__ for each in opener.__mro__})
    _check_head(folder, config, getattr(opener, "_task", ""))
    return folder


def check_kind(config: Mapping[str, Any], openers: Collection[str]) -> None:
    """Raises CheckpointError if none of these classes opens models of this config.json's kind."""
    kind = model_kind(config)
    if kind is None:
        return
    does, classes = _OPENED[kind]
    if not {*openers} & {*classes}:
        wanted = next(does for does, of in _OPENED.values() if {*openers} & {*of})
        raise CheckpointError(
            f"config.json: model_type: got {config['model_type']!r}, which {does}, wanted a model "
            f"that {wanted}; open it with {' or '.join(classes)}"
        )


def _check_head(folder: Path, config: Mapping[str, Any], task: str) -> None:
    """Raises CheckpointError if the folder has no head for the task and was made for another
    one."""
    kind = model_kind(config)
    if task not in _HEADS or kind is None:
        return
    try:
        own = tasks_of(config)
    except CheckpointError:  # the class is not known: loading the weights tells
        return
    if own == task:
        return
    if kind == "encoder":  # its weights may have the head even so
        try:
            check_folder(folder, task)
            return
        except CheckpointError:
            pass
    opens = _OF_TASK.get((kind, own), f"fusewire.load, which does {own!r}")
    raise CheckpointError(
        f"config.json: architectures: got {config['architectures'][0]!r}, wanted a model with a "
        f"head that {_HEADS[task]}; open it with {opens}"
    )
