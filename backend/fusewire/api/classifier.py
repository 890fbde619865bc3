"""`Classifier`: labels of texts, as in transformers' text-classification pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np

from fusewire.api.arguments import check_top_k, listed
from fusewire.api.text_model import TextModel
from fusewire.errors import InvalidInput, type_name
from fusewire.settings import ScoreFunction
from fusewire.tasks.parameters import Value

Text = str | tuple[str, str] | Mapping[str, str]


class Label(TypedDict):
    """A label of the model and its score."""

    label: str
    score: float


class Classifier(TextModel):
    """Labels texts, or pairs of texts, by a model folder or a Hugging Face id with a
    sequence-classification head.

    Threads may share a Classifier; they wait for each other.
    """

    _task = "classify"
    _arguments: ClassVar = {"truncate": "truncation"}

    @property
    def labels(self) -> list[str]:
        """The model's labels, in the order of its logits."""
        names = self._engine.model.id2label
        return [names[index] for index in range(len(names))]

    def __call__(
        self,
        texts: Text | Sequence[Text],
        *,
        top_k: int | None = 1,
        function_to_apply: ScoreFunction | None = None,
        truncation: bool = False,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> list[Label] | list[list[Label]]:
        """Labels texts, in their order.

        Args:
            texts: A text or a list of them; each may be a pair, as a tuple or as
                `{"text": …, "text_pair": …}`.
            top_k: Number of labels per text, best first; None: all.
            function_to_apply: The function from logits to scores: `none`, `sigmoid` or `softmax`.
                Default: chosen from the problem_type and the number of labels in config.json, as in
                transformers.
            truncation: Truncate texts that are too long for the model instead of rejecting them.
            batch_size: Maximum number of texts tokenised together. No need to tune it: batches
                are formed by tokens, at most `max_batch_tokens`.
            show_progress_bar: Default: shown on a terminal, for work of over a fraction of a
                second. False: never.

        Returns:
            `{"label": …, "score": …}` for each text; if `top_k` is not 1, a list of them for each
            text. For a single text its list of labels: `[{"label": …, "score": …}, …]`.

        Raises:
            InvalidInput: A text is not a str, or is too long without truncation.
        """
        check_top_k(top_k, "raise it, or give None for all")
        one = isinstance(texts, (str, Mapping, tuple))
        given: Any = [texts] if one else listed("texts", texts, "texts")
        many = [_pair(text, index) for index, text in enumerate(given)]
        if not many:
            return []
        paired = {pair is not None for _, pair in many}
        if len(paired) > 1:
            got = "a mix of texts and pairs of texts"
            raise InvalidInput("texts", got, "only texts or only pairs", "make two calls")
        parameters: dict[str, Value] = {"truncate": truncation}
        if function_to_apply is not None:
            parameters["function_to_apply"] = function_to_apply
        scores = self._rows(
            [text for text, _ in many],
            [pair for _, pair in many if pair is not None] or None,
            "scores",
            parameters=parameters,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
        )
        labels = self.labels
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        found: list[list[Label]] = [
            [{"label": labels[index], "score": float(row[index])} for index in order]
            for row, order in zip(scores, best, strict=True)
        ]
        if one:
            return found[0]
        return [row[0] for row in found] if top_k == 1 else found


def _pair(text: Text, index: int) -> tuple[str, str | None]:
    if isinstance(text, str):
        return text, None
    if isinstance(text, tuple) and len(text) == 2:
        return text
    if isinstance(text, Mapping) and {"text"} <= text.keys() <= {"text", "text_pair"}:
        return text["text"], text.get("text_pair")
    got = f"{type_name(text)} ({repr(text)[:40]}) at {index}"
    wanted = "a str, a pair of them, or {'text': …, 'text_pair': …}"
    raise InvalidInput("texts", got, wanted, "give texts")
