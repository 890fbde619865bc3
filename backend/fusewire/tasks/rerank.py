"""How a cross-encoder's folder scores pairs of texts, read as sentence-transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.settings import ScoreFunction
from fusewire.tasks.sentence_files import MODEL, prompts_of
from fusewire.weights import read_json

_FUNCTIONS: dict[str, ScoreFunction] = {"Identity": "none", "Sigmoid": "sigmoid"}


def score_function(folder: Path, config: Mapping[str, Any], labels: int) -> ScoreFunction:
    """Returns the function from logits to scores: the one that the folder names, otherwise sigmoid
    for one label and none for several. Raises CheckpointError for a function that is not supported.
    `config`: the folder's config.json."""
    file, named = _named(folder, config)
    if named is None:
        return "sigmoid" if labels == 1 else "none"
    package, _, function = str(named).rpartition(".")
    if package.split(".")[0] != "torch" or function not in _FUNCTIONS:
        raise CheckpointError(
            f"{file}: activation_fn: got {str(named)[:80]!r}, wanted torch's "
            f"{' or '.join(_FUNCTIONS)}; remove it, and apply the function to the logits yourself"
        )
    return _FUNCTIONS[function]


def query_prompt(folder: Path) -> str:
    """Returns the prefix of the first text of each pair."""
    prompts, default = prompts_of(folder)
    return "" if default is None else prompts[default]


def _named(folder: Path, config: Mapping[str, Any]) -> tuple[str, object]:
    """Returns the file that names a function, and the name. sentence-transformers 6 writes it into
    its own file, 4 and 5 into a section of config.json, older versions into a key of
    config.json."""
    named = (read_json(folder, MODEL) or {}).get("activation_fn")
    if named is not None:
        return MODEL, named
    section = config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    if named is None:
        named = config.get("sbert_ce_default_activation_function")
    return "config.json", named
