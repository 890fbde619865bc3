"""Selects the files of a model folder that serving reads. These are copied into a repository."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fusewire.errors import CheckpointError
from fusewire.tasks.sentence_dense import weight_file
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.text.tokenizer_files import MERGES, SENTENCEPIECE_FILES
from fusewire.weights.folder import file_in, weight_files

# The JSON files that serving reads are in the folder or one level below (1_Pooling/config.json).
_DESCRIPTIONS = ("*.json", "*/*.json", "chat_template.jinja", MERGES, *SENTENCEPIECE_FILES)
_DESCRIPTION_LIMIT = 200


def served_files(source: Path, task: str) -> dict[str, Path]:
    """Returns name in the entry -> real file, for all files that serving the task reads."""
    weights = [*weight_files(source)]
    if task == "embed":
        weights += [weight_file(dense) for dense in SentenceFiles.read(source).dense]
    return descriptions(source) | _real(source, weights)


def descriptions(source: Path) -> dict[str, Path]:
    """Returns the same for all files other than weights. Raises CheckpointError where there are too
    many."""
    names = [
        path.relative_to(source).as_posix()
        for pattern in _DESCRIPTIONS
        for path in sorted(source.glob(pattern))
        if not any(part.startswith(".") for part in path.relative_to(source).parts)
    ]
    if len(names) > _DESCRIPTION_LIMIT:
        raise CheckpointError(
            f"{source.name}: got {len(names)} JSON files, wanted at most "
            f"{_DESCRIPTION_LIMIT}; give the folder of one model"
        )
    return _real(source, names)


def _real(source: Path, names: Collection[str]) -> dict[str, Path]:
    found = {name: file_in(source, name) for name in sorted(names)}
    return {name: path for name, path in found.items() if path is not None}
