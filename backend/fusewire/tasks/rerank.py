"""How a cross-encoder's folder has pairs of texts scored, as sentence-transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import CheckpointError
from fusewire.settings import ScoreFunction

_FUNCTIONS: dict[str, ScoreFunction] = {"Identity": "none", "Sigmoid": "sigmoid"}


def score_function(config: Mapping[str, Any], labels: int) -> ScoreFunction:
    """From logits to scores: what config.json names, else the sigmoid of one label, else nothing.
    CheckpointError for a function that is not supported."""
    section = config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    if named is None:
        named = config.get("sbert_ce_default_activation_function")
    if named is None:
        return "sigmoid" if labels == 1 else "none"
    package, _, function = str(named).rpartition(".")
    if package.split(".")[0] != "torch" or function not in _FUNCTIONS:
        raise CheckpointError(
            f"config.json: activation_fn: got {str(named)[:80]!r}, wanted torch's "
            f"{' or '.join(_FUNCTIONS)}; remove it, and apply the function to the logits yourself"
        )
    return _FUNCTIONS[function]
