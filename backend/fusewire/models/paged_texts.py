"""Runs a generating model on whole texts, without an engine: a cache with room for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.models.decoder import DecoderCache, DecoderModel
from fusewire.models.seq2seq_model import Seq2SeqModel, SourceBatch
from fusewire.models.speech_model import SpeechModel
from fusewire.models.step_batch import SourceTable, StepBatch

_PAGE_SIZE = 16

Ids = NDArray[np.int64]
Features = NDArray[np.float32]  # [frames, bins], of audio


class PagedTexts:
    """Texts of at most `most_tokens` each; for an encoder-decoder model behind their sources, which
    are encoded here."""

    def __init__(
        self,
        model: DecoderModel,
        most_tokens: Sequence[int],
        sources: Sequence[Ids] | Sequence[Features],
    ) -> None:
        self._model = model
        self._contexts = np.zeros(len(most_tokens), np.int32)
        each = -(-max(most_tokens) // _PAGE_SIZE)
        self._table = np.arange(len(most_tokens) * each, dtype=np.int32).reshape(-1, each)
        features: list[Any] = [each for each in sources if each.dtype == np.float32]
        texts: list[Any] = [each for each in sources if each.dtype != np.float32]
        lengths = np.array([source.size for source in texts], np.int32)
        if isinstance(model, SpeechModel):
            lengths = np.full(len(features), model.max_source_length, np.int32)
        source_each = -(-int(lengths.max(initial=0)) // _PAGE_SIZE)
        pages = self._table.size + len(sources) * source_each
        self._cache: DecoderCache = model.new_cache(pages, _PAGE_SIZE)
        self._sources = None
        if isinstance(model, Seq2SeqModel):
            table = np.arange(self._table.size, pages, dtype=np.int32).reshape(-1, source_each)
            self._sources = SourceTable(lengths, table)
            if isinstance(model, SpeechModel):
                batch = model.source_batch(features, table)
            else:
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                batch = SourceBatch(np.concatenate(texts), offsets, table)
            model.encode(batch, self._cache)

    def step(self, new: Sequence[Ids], places: int) -> NDArray[np.float32]:
        """Reads new tokens of each text. Returns the logits of the last `places` new tokens of each
        text, which has to have as many: [texts * places, vocabulary]."""
        sizes = np.array([ids.size for ids in new])
        ends = np.cumsum(sizes)
        past, self._contexts = self._contexts, (self._contexts + sizes).astype(np.int32)
        spans = zip(past, self._contexts, strict=True)
        step = StepBatch(
            input_ids=np.concatenate(new),
            positions=np.concatenate([np.arange(*span, dtype=np.int32) for span in spans]),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            context_lengths=self._contexts,
            block_table=self._table,
            logit_rows=(ends[:, None] + np.arange(-places, 0)).reshape(-1),
            sources=self._sources,
        )
        logits = self._model.place.numpy(self._model.step(step, self._cache))
        return np.array(logits, np.float32)
