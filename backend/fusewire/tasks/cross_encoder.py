"""What config.json says of a sentence-transformers CrossEncoder: from its one logit to a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import CheckpointError

# The newer key and the older one; the value is the class of a torch module.
_KEYS = ("activation_fn", "sbert_ce_default_activation_function")
_FUNCTIONS = {"Identity": "none", "Sigmoid": "sigmoid"}


def score_function(config: Mapping[str, Any]) -> str:
    """`function_to_apply` of a classifier with one label that ranks: the folder's activation
    function, else sigmoid, as sentence-transformers has it. CheckpointError for another one."""
    newer, older = _KEYS
    written = config.get("sentence_transformers")
    name = (written if isinstance(written, dict) else {}).get(newer) or config.get(older)
    if name is None:
        return "sigmoid"
    function = _FUNCTIONS.get(str(name).rsplit(".", 1)[-1])
    if function is None:
        raise CheckpointError(
            f"config.json: {newer}: got {str(name)[:80]!r}, wanted one of {', '.join(_FUNCTIONS)}; "
            "serve the task classify, and compute the score at the client"
        )
    return function
