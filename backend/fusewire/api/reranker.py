"""`Reranker`: scores of pairs of texts, as in sentence-transformers' `CrossEncoder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from fusewire.api.arguments import check_top_k, listed
from fusewire.api.text_model import TextModel
from fusewire.errors import InvalidInput, type_name
from fusewire.tasks.rerank import query_prompt, score_function


class Ranked(TypedDict):
    """A document's index in the given list, and its score."""

    corpus_id: int
    score: float
    text: NotRequired[str]


class Reranker(TextModel):
    """Scores pairs of texts by a cross-encoder: a model folder or a Hugging Face id with a
    sequence-classification head.

    Threads may share a Reranker; they wait for each other.
    """

    _task = "classify"
    _ranks = True

    def _loaded(self) -> None:
        classifier = self._engine.model
        self._labels = len(classifier.id2label)
        self._function = score_function(self._folder, classifier.config, self._labels)
        self._prompt = query_prompt(self._folder)

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | Sequence[Sequence[str]] | tuple[str, str],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> NDArray[np.float32] | np.float32:
        """Scores pairs, in their order; pairs that are too long are truncated, the longer text
        first.

        Args:
            pairs: (query, document) pairs, or one pair.
            batch_size: Maximum number of pairs tokenised together. No need to tune it: batches
                are formed by tokens, at most `max_batch_tokens`.
            show_progress_bar: Default: shown on a terminal, for work of over a fraction of a
                second. False: never.

        Returns:
            float32 [n], the sigmoid of the logit unless the folder says otherwise; for a model with
            several labels its logits [n, labels]. For a single pair its score.

        Raises:
            InvalidInput: A pair is not two texts.
        """
        many = listed("pairs", pairs, "(query, document)")
        one = len(many) > 0 and isinstance(many[0], str)
        if one:
            many = [pairs]
        for index, pair in enumerate(many):
            if isinstance(pair, str) or not isinstance(pair, Sequence | np.ndarray):
                raise _no_pair(type_name(pair), index)
            if len(pair) != 2:
                raise _no_pair(f"{type_name(pair)} of length {len(pair)}", index)
        if not many:
            return np.empty((0,) if self._labels == 1 else (0, self._labels), np.float32)
        scores = self._rows(
            [self._with_prompt(query) for query, _ in many],
            [document for _, document in many],
            "scores",
            parameters={"truncate": True, "function_to_apply": self._function},
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
        )
        if self._labels == 1:
            scores = scores[:, 0]
        found: NDArray[np.float32] | np.float32 = scores[0] if one else scores
        return found

    def _with_prompt(self, query: Any) -> Any:
        return self._prompt + query if isinstance(query, str) else query

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> list[Ranked]:
        """Ranks documents by how well they answer the query, best first.

        Args:
            query: The query.
            documents: The documents to rank.
            top_k: Number of documents to return. Default: all.
            return_documents: Whether each result has its `text`.
            batch_size: As for `predict`.
            show_progress_bar: As for `predict`.

        Returns:
            `{"corpus_id": index in documents, "score": …, "text": …}` for each.

        Raises:
            InvalidInput: The model has several labels, or a text is not a str.
        """
        if self._labels != 1:
            raise InvalidInput(
                "model", f"{self._labels} labels", "1, as a reranker has", "call predict instead"
            )
        if not isinstance(query, str):
            raise InvalidInput("query", type_name(query), "a text", "give one for all documents")
        check_top_k(top_k, "raise it or leave it out")
        documents = listed("documents", documents, "texts")
        scores = np.atleast_1d(
            self.predict(
                [(query, document) for document in documents],
                batch_size=batch_size,
                show_progress_bar=show_progress_bar,
            )
        )
        order = np.argsort(-scores, kind="stable")[:top_k]
        ranked: list[Ranked] = [
            {"corpus_id": int(index), "score": float(scores[index])} for index in order
        ]
        if return_documents:
            for each in ranked:
                each["text"] = documents[each["corpus_id"]]
        return ranked


def _no_pair(got: str, index: int) -> InvalidInput:
    return InvalidInput(
        "pairs", f"{got} at {index}", "(query, document)", "give two texts for each"
    )
