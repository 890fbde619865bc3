"""An encoder-decoder model whose sources are audio: log-mel features of a fixed length, in place of
tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput
from fusewire.models.blueprint import Frames, Stack
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.frames import BuiltFrames
from fusewire.models.inputs import Inputs, NamedTensors
from fusewire.models.positions import counted_positions
from fusewire.models.seq2seq_model import Seq2SeqModel, SourceBatch


class SpeechModel(Seq2SeqModel):
    """Each source has `max_source_length` rows in the cache, however short its speech is: the
    encoder was trained on audio that is padded with silence."""

    features_shape: tuple[int, int]  # frames and bins of a source

    def _describe_sources(self, encoder: Stack) -> None:
        assert isinstance(encoder.embeddings, Frames)
        self.features_shape = encoder.embeddings.frames, encoder.embeddings.bins
        self.source_vocab_size = 0

    @property
    def _frames(self) -> BuiltFrames:
        block = self._encoder.input_block
        assert isinstance(block, BuiltFrames)
        return block

    def check_features(self, features: NDArray[np.float32]) -> None:
        """Raises InvalidInput unless the features are those of one source, [frames, bins]."""
        self._frames.check(features[None])

    def source_batch(
        self, features: Sequence[NDArray[np.float32]], block_table: NDArray[np.int32]
    ) -> SourceBatch:
        """Returns a batch of one or more sources [frames, bins]."""
        length = self.max_source_length
        return SourceBatch(
            input_ids=np.arange(length * len(features)),
            cu_seqlens=(length * np.arange(len(features) + 1)).astype(np.int32),
            block_table=block_table,
            features=np.stack(features),
        )

    def _check_sources(self, sources: SourceBatch, lengths: NDArray[np.int32]) -> None:
        if sources.features is None:
            got, wanted = "none", f"float32 of shape {list(self.features_shape)} for each source"
            raise InvalidInput("features", got, wanted, "compute them from audio")
        self._frames.check(sources.features)
        if (lengths != self.max_source_length).any() or len(lengths) != len(sources.features):
            got = f"sources of {lengths.tolist()} rows for {len(sources.features)} features"
            wanted = f"{self.max_source_length} rows each"
            raise InvalidInput("features", got, wanted, "use `source_batch`")

    def _positions(self, sources: SourceBatch, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        return counted_positions(sources.cu_seqlens, lengths)

    def _read_by_encoder(self, sources: SourceBatch, inputs: Inputs) -> NamedTensors:
        assert sources.features is not None
        return {"positions": inputs["positions"], **self._frames.tensors(sources.features)}

    def _warm_up_sources(self, sizes: list[int], cache: DecoderCache) -> Iterator[SourceBatch]:
        pages = np.arange(-(-self.max_source_length // cache.page_size), dtype=np.int32)
        for count in sorted({max(1, size // self.max_source_length) for size in sizes}):
            silence = [np.zeros(self.features_shape, np.float32)] * count
            yield self.source_batch(silence, np.tile(pages, (count, 1)))
