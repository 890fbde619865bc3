"""One vector a text, pooled and scaled as the folder's sentence-transformers files say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import kernels
from fusewire.engine.batch import Batch
from fusewire.engine.settings import EngineSettings
from fusewire.errors import InvalidInput
from fusewire.tasks.rows import Query
from fusewire.tasks.sentence_files import SentenceFiles
from fusewire.tasks.task import Item, Reply, Task
from fusewire.tasks.tokenizer import Tokenizer

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
        self.prompt(settings)  # is there one of that name?

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

    def head(self, hidden: kernels.Tensor, batch: Batch, items: Sequence[Item]) -> list[Any]:
        sequences = self.model.place.sequences(batch.cu_seqlens)
        # Requests may pool and scale differently; almost always all do the same.
        kinds = [self._kind(item.query.settings) for item in items]
        pooled = {kind: self._pooled(hidden, sequences, *kind) for kind in set(kinds)}
        return [pooled[kind][row] for row, kind in enumerate(kinds)]

    def reply(self, query: Query, results: list[list[Any]]) -> Reply:
        return {"embedding": np.stack([windows[0] for windows in results])}

    def _kind(self, settings: EngineSettings) -> tuple[str, bool]:
        normalize = settings.normalize
        return (
            settings.pooling or self._files.pooling,
            self._files.normalize if normalize is None else normalize,
        )

    def _pooled(
        self,
        hidden: kernels.Tensor,
        sequences: kernels.SequenceBatch,
        pooling: str,
        normalize: bool,
    ) -> np.ndarray:
        place = self.model.place
        out = place.empty(sequences.sequences, self.model.hidden_size)
        kernels.pool(out, hidden, sequences, pooling, place.stream)
        if normalize:
            kernels.l2_normalize(out, out, place.stream)
        return place.numpy(out)
