"""One vector per text, pooled and scaled according to the folder's sentence-transformers files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.errors import InvalidInput
from fusewire.models.task_heads import Embedding, EmbeddingOptions
from fusewire.settings import EngineSettings
from fusewire.tasks.rows import Query
from fusewire.tasks.sentence_dense import dense_weights
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.task import Reply, Task
from fusewire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fusewire.models import EncoderModel


class Embed(Task):
    name = "embed"

    def __init__(
        self, model: EncoderModel, tokenizer: Tokenizer | None, settings: EngineSettings
    ) -> None:
        super().__init__(model, tokenizer, settings)
        self._files = SentenceFiles.read(model.folder) if model.folder else SentenceFiles()
        if self._files.lowercase and tokenizer is not None:
            tokenizer.lowercase()
        self._files.embedding_size(model.hidden_size)  # raises where the Dense modules do not fit
        self.prompt(settings)  # raises where the name is unknown

    def prompt(self, settings: EngineSettings) -> str:
        if settings.prompt is None:
            return self._files.prompt(settings.prompt_name)
        if settings.prompt and not self._files.pools_prompts:
            raise InvalidInput(
                "prompt",
                repr(settings.prompt)[:80],
                "none, as this model's pooling leaves prompts out (include_prompt false)",
                "leave it out, or ask for the task hidden and pool at the client",
            )
        return settings.prompt

    def text_limit(self) -> int | None:
        return self._files.max_length or super().text_limit()

    def head(self) -> Embedding:
        dense, folder = self._files.dense, self.model.folder
        place, hidden_size = self.model.place, self.model.hidden_size
        if not dense:
            return Embedding(place, hidden_size)
        assert folder is not None  # the Dense modules were read from its files
        return Embedding(place, hidden_size, dense, dense_weights(folder, dense))

    def head_options(self, settings: EngineSettings) -> EmbeddingOptions:
        return self._files.options(settings.pooling, settings.normalize)

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        return {"embedding": np.stack([windows[0] for windows in results])}
