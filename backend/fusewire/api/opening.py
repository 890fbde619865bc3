"""Which class opens which folder."""

from __future__ import annotations

from pathlib import Path

from fusewire.errors import CheckpointError
from fusewire.hub import model_folder
from fusewire.models import model_kind, read_config

_OF_TEXTS = ("Embedder", "Classifier", "Reranker")
_OF_IMAGES = ("ImageEmbedder", "ImageClassifier", "ZeroShotImageClassifier")
# Kind of model -> what it does, and the classes that open its folder.
_OPENED: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoder": ("reads texts", _OF_TEXTS),
    "decoder": ("writes texts", ("LLM",)),
    "encoder-decoder": ("writes texts", ("LLM", "Embedder")),
    "images": ("reads images", _OF_IMAGES),
    "speech": ("writes what is said in sound", ("Transcriber",)),
}


def folder_for(opener: type, model: str | Path, revision: str | None) -> Path:
    """The folder of `model` that a class opens; CheckpointError names those for a model of another
    kind. What no class opens is refused where it is loaded."""
    folder = model_folder(model, revision=revision)
    config = read_config(folder)
    kind = model_kind(config)
    if kind is None:
        return folder
    names = {each.__name__ for each in opener.__mro__}
    does, classes = _OPENED[kind]
    if names.isdisjoint(classes):
        wanted = next(does for does, of in _OPENED.values() if not names.isdisjoint(of))
        raise CheckpointError(
            f"config.json: model_type: got {config['model_type']!r}, which {does}, wanted a model "
            f"that {wanted}; open it with {' or '.join(classes)}"
        )
    return folder
