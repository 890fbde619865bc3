"""Aligns texts with their sources: reads them once more, while all else waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusewire.engine.branches import Generation
from fusewire.engine.continuation import Alignment, Delta
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.token_times import TokenTimes
from fusewire.models.seq2seq_model import Seq2SeqModel

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel


class Aligner:
    """Aligns the texts of one model."""

    def __init__(
        self, model: DecoderModel, most_tokens: int, times: TokenTimes | None = None
    ) -> None:
        """`most_tokens`: how many tokens of texts are read at once. `times`: for a model of
        speech."""
        self._model = model
        self._most_tokens = most_tokens
        self._times = times
        self.took_s = 0.0  # of all alignments

    def align(
        self, generation: Generation, texts: Sequence[list[int]], deltas: Sequence[Delta]
    ) -> None:
        """Gives the last delta of each text its alignment, or for a model of speech the times of
        its tokens. `texts`: the token ids of each, of which there may be more than deltas."""
        lasts = [delta for delta in deltas if delta.finish_reason is not None]
        sequences = [each.sequence for each in generation.branches if each.sequence]
        sequence = next(each for each in sequences if each.pages)  # one that ends has them
        began = time.perf_counter()
        try:
            if generation.heard:
                self._find_times(generation, sequence, texts, lasts)
            else:
                self._find_weights(generation, sequence, texts, lasts)
        finally:
            self.took_s += time.perf_counter() - began

    def _find_times(
        self,
        generation: Generation,
        sequence: GenerationSequence,
        texts: Sequence[list[int]],
        lasts: Sequence[Delta],
    ) -> None:
        assert self._times is not None
        assert sequence.pages is not None
        source = sequence.pages.source
        assert source is not None
        for delta, tokens in zip(lasts, texts, strict=False):
            delta.token_ends = self._times.find(
                generation.decoder_ids, tokens, source, generation.heard
            )

    def _find_weights(
        self,
        generation: Generation,
        sequence: GenerationSequence,
        texts: Sequence[list[int]],
        lasts: Sequence[Delta],
    ) -> None:
        source = sequence.source
        assert source is not None
        assert isinstance(self._model, Seq2SeqModel)
        begin = generation.decoder_ids
        read = [[*begin, *tokens[:-1]] for tokens in texts[: len(lasts)]]
        found = self._model.alignments(source.token_ids, read, self._most_tokens)
        for delta, tokens, weights in zip(lasts, texts, found, strict=False):
            delta.alignment = Alignment(source.token_ids, tokens, weights[len(begin) - 1 :])
