"""Aligns texts with their sources: reads both once more, while all else waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusewire.engine.branches import Generation
from fusewire.engine.continuation import Alignment, Delta
from fusewire.models.seq2seq_model import Seq2SeqModel

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel


class Aligner:
    """With a model."""

    def __init__(self, model: DecoderModel, most_tokens: int) -> None:
        """`most_tokens`: of texts that are read at once."""
        self._model = model
        self._most_tokens = most_tokens
        self.took_s = 0.0  # in all

    def align(
        self, generation: Generation, texts: Sequence[list[int]], deltas: Sequence[Delta]
    ) -> None:
        """Gives the last delta of each text, of which there may be more, its alignment."""
        lasts = [delta for delta in deltas if delta.finish_reason is not None]
        sequence = next(each.sequence for each in generation.branches if each.sequence)
        source = sequence.source
        assert source is not None
        assert isinstance(self._model, Seq2SeqModel)
        begin = generation.decoder_ids
        read = [[*begin, *tokens[:-1]] for tokens in texts[: len(lasts)]]
        began = time.perf_counter()
        try:
            found = self._model.alignments(source.token_ids, read, self._most_tokens)
        finally:
            self.took_s += time.perf_counter() - began
        for delta, tokens, weights in zip(lasts, texts, found, strict=False):
            delta.alignment = Alignment(source.token_ids, tokens, weights[len(begin) - 1 :])
