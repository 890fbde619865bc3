"""Scores over the labels of a text or a pair. Reranking is a pair with one label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError
from fusewire.models.task_heads import TaskHead, sequence_logits
from fusewire.settings import EngineSettings
from fusewire.tasks.rows import Query
from fusewire.tasks.scores import sigmoid, softmax
from fusewire.tasks.task import Reply, Task, strings
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models import EncoderModel

_BY_PROBLEM = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


def default_function(problem_type: str | None, labels: int) -> str:
    """Returns the function that transformers chooses by problem_type. A single label always has a
    sigmoid, except in regression."""
    if problem_type is not None and problem_type not in _BY_PROBLEM:
        raise CheckpointError(
            f"config.json: problem_type: got {problem_type!r}, wanted one of "
            f"{', '.join(_BY_PROBLEM)}; correct or remove it"
        )
    if problem_type == "regression":
        return "none"
    if labels == 1:
        return "sigmoid"
    return _BY_PROBLEM[problem_type] if problem_type else "softmax"


class Classify(Task):
    """`scores` [n, labels] in the order of the labels; `label` [n, 1], the name of the best one."""

    name = "classify"
    pairs = "optional"

    def __init__(
        self, model: EncoderModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        super().__init__(model, tokenizer, settings)
        self.ranks = len(model.id2label) == 1
        self._default = default_function(model.config.get("problem_type"), len(model.id2label))

    def head(self) -> TaskHead:
        return sequence_logits(self.model)

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        logits = np.stack([windows[0] for windows in results])
        scores = APPLY[query.settings.function_to_apply or self._default](logits)
        best = [self.model.id2label[index] for index in scores.argmax(axis=-1)]
        return {"scores": scores, "label": strings(best)}


def _as_they_are(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits


APPLY = {"none": _as_they_are, "sigmoid": sigmoid, "softmax": softmax}
