"""`Embedder`: vectors of texts, as in sentence-transformers' `SentenceTransformer`."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusewire.api import similarity
from fusewire.api.arguments import listed
from fusewire.api.text_model import TextModel
from fusewire.errors import InvalidInput, sent
from fusewire.tasks.parameters import Value
from fusewire.tasks.sentence_files import SentenceFiles

Texts = str | Sequence[str]
# Default prompts; config_sentence_transformers.json overrides them.
_NO_PROMPTS = {"query": "", "document": ""}
_DOCUMENTS = ("document", "passage", "corpus")


class Embedder(TextModel):
    """Embeds texts by a model folder or a Hugging Face id.

    Pooling, normalisation, prompts, maximum length and similarity are those of the folder's
    sentence-transformers files; without them, embeddings are the mean of the token vectors, not
    normalised. Nothing is padded, so there is no need to sort texts or to choose a batch size.
    Texts longer than `max_length` are truncated.

    Threads may share an Embedder; they wait for each other.
    """

    _task = "embed"
    _arguments: ClassVar = {"normalize": "normalize_embeddings"}
    prompts: dict[str, str]
    """Prompts by name."""
    similarity_fn_name: str
    """`cosine`, `dot`, `euclidean` or `manhattan`."""

    def _loaded(self) -> None:
        files = SentenceFiles.read(self._folder)
        self.prompts = {**_NO_PROMPTS, **files.prompts}
        self.similarity_fn_name = files.similarity
        self._dimension = files.embedding_size(self._model.hidden_size)

    @property
    def max_seq_length(self) -> int:
        """Maximum length of a text in tokens; longer texts are truncated."""
        return self._engine.max_length

    @property
    def device(self) -> str:
        """`cpu` or `cuda:<index>`."""
        return self._engine.model.place.device

    def get_embedding_dimension(self) -> int:
        """Returns the number of elements of an embedding."""
        return self._dimension

    def encode(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
    ) -> NDArray[np.float32]:
        """Embeds texts, in their order.

        Args:
            texts: A text, or a list of them. Those longer than `max_seq_length` are truncated.
            prompt_name: Name of the prompt in `prompts` to put before each text. Default: the
                folder's `default_prompt_name`, else none.
            prompt: The prompt itself; takes precedence over `prompt_name`.
            batch_size: Maximum number of texts tokenised together. No need to tune it: batches
                are formed by tokens, at most `max_batch_tokens`.
            show_progress_bar: Default: shown on a terminal, for work of over a fraction of a
                second. False: never.
            normalize_embeddings: Scale embeddings to length 1. Default: as the folder says.
            truncate_dim: Keep this many leading elements of each embedding (of a Matryoshka
                model). With `normalize_embeddings` they are then scaled to length 1.

        Returns:
            float32 [n, dim]; for a single text [dim].

        Raises:
            InvalidInput: A text is not a str, or there is no such prompt or dimension.
        """
        dimension = self.get_embedding_dimension()
        if truncate_dim is not None:
            whole = isinstance(truncate_dim, Integral) and not isinstance(truncate_dim, bool)
            if not whole or not 1 <= truncate_dim <= dimension:
                remedy = "choose a dimension that the model was trained for"
                raise InvalidInput("truncate_dim", sent(truncate_dim), f"1..{dimension}", remedy)
        many = [texts] if isinstance(texts, str) else listed("texts", texts, "texts")
        if not many:
            return np.empty((0, truncate_dim or dimension), np.float32)
        parameters: dict[str, Value] = {"truncate": True}
        if normalize_embeddings is not None:
            parameters["normalize"] = normalize_embeddings
        if prompt is not None:
            parameters["prompt"] = prompt
        elif prompt_name is not None:
            parameters["prompt"] = self._prompt(prompt_name)
        rows = self._rows(
            many,
            None,
            "embedding",
            parameters=parameters,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
        )
        if truncate_dim is not None:
            rows = np.ascontiguousarray(rows[:, :truncate_dim])
            if normalize_embeddings:
                rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows[0] if isinstance(texts, str) else rows

    def encode_query(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
    ) -> NDArray[np.float32]:
        """As `encode`, for queries: with the prompt named `query` if no other is given. If the
        folder has no such prompt, none is put before queries."""
        return self.encode(
            texts,
            prompt_name="query" if prompt_name is None else prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
        )

    def encode_document(
        self,
        texts: Texts,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
    ) -> NDArray[np.float32]:
        """As `encode`, for documents: with the first prompt of `document`, `passage` and `corpus`
        that exists if no other is given."""
        first = next(name for name in _DOCUMENTS if name in self.prompts)
        return self.encode(
            texts,
            prompt_name=first if prompt_name is None else prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
        )

    def similarity(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Returns the similarity of each embedding of `a` [n, dim] to each of `b` [m, dim], by
        `similarity_fn_name`: float32 [n, m], larger is more similar. A vector [dim] is one row;
        distances are negated."""
        return similarity.similarity(self.similarity_fn_name, a, b)

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """As `similarity`, of each embedding of `a` [n, dim] to the same row of `b` [n, dim]:
        float32 [n]."""
        return similarity.similarity_pairwise(self.similarity_fn_name, a, b)

    def _prompt(self, name: str) -> str:
        if not isinstance(name, str) or name not in self.prompts:
            wanted = f"one of {', '.join(self.prompts)}"
            remedy = "choose one of these, or give the text as `prompt`"
            raise InvalidInput("prompt_name", sent(name), wanted, remedy)
        return self.prompts[name]
