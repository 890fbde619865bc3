"""`Embedder`: texts to vectors, as sentence-transformers' `SentenceTransformer`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusewire.api import similarity
from fusewire.api.text_model import TextModel
from fusewire.errors import InvalidInput
from fusewire.tasks.parameters import Value
from fusewire.tasks.sentence_files import SentenceFiles

Texts = str | Sequence[str]
# By default; a folder says otherwise in config_sentence_transformers.json.
_NO_PROMPTS = {"query": "", "document": ""}
_DOCUMENTS = ("document", "passage", "corpus")


class Embedder:
    """Embeds texts by a model folder or a Hugging Face id.

    Pooling, scaling, prompts, the longest text and the similarity are those of the folder's
    sentence-transformers files; without them, the unscaled mean of the token vectors. Nothing is
    padded, so there is no need to sort texts or to choose a batch size.

    Threads may share an Embedder; they wait for each other.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        revision: str | None = None,
        max_length: int | None = None,
        max_batch_tokens: int | None = None,
        threads: int = 0,
    ) -> None:
        """Loads the model.

        Args:
            model: A model folder, or an id on Hugging Face.
            device: `auto` (the first GPU where there is one, else the CPU), `cpu`, `cuda` or
                `cuda:<index>`.
            dtype: Precision of the computation; `auto` is float32 on the CPU and float16 on a GPU.
            revision: Branch, tag or commit of a Hugging Face id.
            max_length: Longest text in tokens, special tokens included; longer ones are truncated.
                Default: what the folder says.
            max_batch_tokens: Tokens computed at once; bounds the memory of the computation.
                Default: 16384.
            threads: CPU threads; 0: one for each core.

        Raises:
            CheckpointError: The folder cannot be read, or asks for something not supported.
            ConfigurationError: There is no such device or dtype here, or a value is out of range.
        """
        self._model = TextModel(
            model,
            "embed",
            device=device,
            dtype=dtype,
            revision=revision,
            max_length=max_length,
            max_batch_tokens=max_batch_tokens,
            threads=threads,
        )
        files = SentenceFiles.read(self._model.folder)
        self.prompts: dict[str, str] = {**_NO_PROMPTS, **files.prompts}
        """Prompts by name."""
        self.similarity_fn_name: str = files.similarity
        """`cosine`, `dot`, `euclidean` or `manhattan`."""

    @property
    def max_seq_length(self) -> int:
        """Longest text in tokens; longer ones are truncated."""
        return self._model.engine.max_length

    @property
    def device(self) -> str:
        """`cpu` or `cuda:<index>`."""
        return self._model.engine.model.place.device

    def get_embedding_dimension(self) -> int:
        """Length of an embedding."""
        return self._model.engine.model.hidden_size

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
            prompt_name: Name of the prompt, of `prompts`, to put before each text. Default: the
                folder's `default_prompt_name`, else none.
            prompt: The prompt itself; goes before `prompt_name`.
            batch_size: Maximum number of texts tokenised together. No need to tune it: batches
                are formed by tokens, at most `max_batch_tokens`.
            show_progress_bar: Default: shown on a terminal, for work of over a fraction of a
                second. False: never.
            normalize_embeddings: Scale embeddings to length 1. Default: as the folder says.
            truncate_dim: Keep this many leading values of each embedding (of a Matryoshka model).
                Scaled to length 1 after it where `normalize_embeddings` is True.

        Returns:
            float32 [n, dim]; of a single text [dim].

        Raises:
            InvalidInput: A text is not a str, or there is no such prompt or dimension.
        """
        dimension = self.get_embedding_dimension()
        if truncate_dim is not None and not 1 <= truncate_dim <= dimension:
            remedy = "choose a dimension that the model was trained for"
            raise InvalidInput("truncate_dim", truncate_dim, f"1..{dimension}", remedy)
        many = [texts] if isinstance(texts, str) else list(texts)
        if not many:
            return np.empty((0, truncate_dim or dimension), np.float32)
        parameters: dict[str, Value] = {"truncate": True}
        if normalize_embeddings is not None:
            parameters["normalize"] = normalize_embeddings
        if prompt is not None:
            parameters["prompt"] = prompt
        elif prompt_name is not None:
            parameters["prompt"] = self._prompt(prompt_name)
        rows = self._model.rows(
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
        """As `encode`, for queries: with the prompt named `query`, where no other is
        given. A folder without such a prompt has none put before its queries."""
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
        """As `encode`, for documents: with the first prompt there is of `document`,
        `passage` and `corpus`, where no other is given."""
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
        """The similarity of each embedding of `a` [n, dim] with each of `b` [m, dim], by
        `similarity_fn_name`: float32 [n, m], larger is more similar. A vector [dim] is one row;
        distances are negative."""
        return similarity.similarity(self.similarity_fn_name, a, b)

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """As `similarity`, of each embedding of `a` [n, dim] with the same row of `b` [n, dim]:
        float32 [n]."""
        return similarity.similarity_pairwise(self.similarity_fn_name, a, b)

    def _prompt(self, name: str) -> str:
        if name not in self.prompts:
            wanted = f"one of {', '.join(self.prompts)}"
            remedy = "choose one of these, or give the text as `prompt`"
            raise InvalidInput("prompt_name", repr(name)[:80], wanted, remedy)
        return self.prompts[name]
