"""The encoder-decoder of all architectures: a decoder whose steps attend to the encoder's output.

Keys and values of sources are in the same planes as the decoder's own, in pages that the caller
chooses: one pool holds both. They are computed once, for all layers by one matrix product, and read
by every step of the targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.attention_weights import head_weights, mean_weights
from fusewire.models.blueprint import Blueprint, CrossAttention, Embeddings, Stack
from fusewire.models.decoder import DecoderModel, within
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.inputs import Inputs, NamedTensors
from fusewire.models.positions import text_positions
from fusewire.models.stack import BuiltStack
from fusewire.models.step_batch import SourceTable, StepBatch, paged, upload
from fusewire.models.stored_weights import Dense
from fusewire.models.warm_up_prompts import warm_up_prompts
from fusewire.placement import Placement
from fusewire.weights import Checkpoint

_ALIGNMENT_PAGE = 16  # positions


@dataclass(frozen=True)
class SourceBatch:
    """Whole sources, packed one after another; a step refers to them by a `SourceTable`."""

    input_ids: NDArray[np.int64]  # [tokens]; for audio 0, 1, 2, ... in place of ids
    cu_seqlens: NDArray[np.int32]  # [sources + 1]
    block_table: NDArray[np.int32]  # [sources, pages of the longest]
    features: NDArray[np.float32] | None = None  # of audio [sources, frames, bins]


class Seq2SeqModel(DecoderModel):
    """A loaded encoder-decoder model with its language-modelling head. Its steps are a decoder's,
    with a table of their sources."""

    _reads_sources = True

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        place: Placement,
        *,
        config: dict[str, Any],
        folder: Path | None,
    ) -> None:
        super().__init__(blueprint, checkpoint, place, config=config, folder=folder)
        encoder, target = blueprint.encoder, blueprint.target
        assert encoder is not None
        assert target is not None
        self.max_source_length = encoder.max_length
        self._describe_sources(encoder)
        self.decoder_start_token_id = self._target_token("decoder_start_token_id", target.first)
        self.forced_bos_token_id = target.forced_bos and self._target_token(
            "forced_bos_token_id", target.forced_bos
        )
        self.forced_eos_token_id = tuple(
            self._target_token("forced_eos_token_id", token) for token in target.forced_eos
        )

    @property
    def decoder_heads(self) -> tuple[int, int]:
        """The number of layers, and of cross-attention heads in each."""
        return len(self._attentions), self._heads

    def _describe_sources(self, encoder: Stack) -> None:
        assert isinstance(encoder.embeddings, Embeddings)
        self.source_vocab_size = encoder.embeddings.word.rows
        self._padding_index = encoder.embeddings.padding_index

    def _load_head(self, blueprint: Blueprint, head: str | None, weights: Weights) -> None:
        super()._load_head(blueprint, head, weights)
        assert blueprint.encoder is not None
        self._encoder = BuiltStack(blueprint.encoder, weights, self.place, self._workspace)
        attentions = blueprint.stack.cross_attentions
        self._heads = attentions[0].heads
        self._keys_values = weights.layer_linear(_together(attentions))
        self._width = attentions[0].kv.outputs // 2
        self._source_scale = attentions[-1].scale or (self._width // self._heads) ** -0.5

    def encode(self, sources: SourceBatch, cache: DecoderCache) -> None:
        """Runs the encoder over the sources and stores keys and values of every cross-attention in
        their pages, where steps read them. Allocates 2 * layers * width elements per token for the
        duration of the call.

        Raises InvalidInput when an id or a length is out of range, kernels.Error when the pages do
        not fit the lengths.
        """
        self._encode(sources, cache)

    def alignments(
        self,
        source_ids: Sequence[int],
        targets: Sequence[Sequence[int]],
        max_batch_tokens: int = 1 << 24,
    ) -> list[NDArray[np.float32]]:
        """Returns the cross-attention weights of the last layer for the tokens of each target:
        [tokens, source tokens], rows that sum to 1, the mean over the heads.

        Encodes the source again and runs whole targets, at most `max_batch_tokens` tokens at a time
        (or a single longer target), in a cache of its own; the last product is computed on the
        host. Raises InvalidInput when an id or a length is out of range.
        """
        passes = [targets[each] for each in _passes(list(map(len, targets)), max_batch_tokens)]
        length, source_pages = len(source_ids), _alignment_pages(source_ids)
        target_pages = max(sum(map(_alignment_pages, each)) for each in passes)
        cache = self.new_cache(source_pages + target_pages, _ALIGNMENT_PAGE)
        table = np.arange(source_pages, dtype=np.int32)[None]
        of_source = np.array([0, length], np.int32)
        source = SourceBatch(np.array(source_ids, np.int64), of_source, table)
        stored = self.place.numpy(self._encode(source, cache))
        keys = stored[:, 2 * (len(self._attentions) - 1) * self._width :][:, : self._width]
        weights = []
        for some in passes:
            sources = SourceTable(
                np.full(len(some), length, np.int32), table.repeat(len(some), axis=0)
            )
            last = [len(self._attentions) - 1]
            for [queries] in self._source_queries(some, sources, source_pages, cache, last):
                weights.append(mean_weights(queries, keys, self._heads, self._source_scale))
        return weights

    def head_weights(
        self,
        target_ids: Sequence[int],
        source: SourceTable,
        cache: DecoderCache,
        first_page: int,
        heads: Sequence[tuple[int, int]],
    ) -> NDArray[np.float32]:
        """Returns the cross-attention weights of single heads, (layer, head) each, for the tokens
        of a target: [heads, tokens, source tokens], rows that sum to 1.

        The cache has the one source, as `encode` stored it. The whole target is run, in pages of
        the cache from `first_page` on. The last product is computed on the host. Raises
        InvalidInput when an id or a length is out of range.
        """
        layers = sorted({layer for layer, _ in heads})
        [queries] = self._source_queries([target_ids], source, first_page, cache, layers)
        asked = dict(zip(layers, queries, strict=True))
        length, pages = int(source.lengths[0]), source.block_table[0]
        keys = {layer: cache.keys(layer, self._heads, pages)[:, :length] for layer in layers}
        width = self._width // self._heads
        return np.stack(
            [
                head_weights(
                    asked[layer][:, head * width :][:, :width],
                    keys[layer][head],
                    self._source_scale,
                )
                for layer, head in heads
            ]
        )

    def _source_queries(
        self,
        targets: Sequence[Sequence[int]],
        sources: SourceTable,
        first_page: int,
        cache: DecoderCache,
        layers: Sequence[int],
    ) -> list[tuple[NDArray[np.float32], ...]]:
        """Returns for each target the cross-attention queries of some layers, in order, [tokens,
        width] each. The targets use pages of the cache from `first_page` on."""
        pages_of = [-(-len(ids) // cache.page_size) for ids in targets]
        firsts = first_page + np.cumsum([0, *pages_of])
        tables = np.zeros((len(targets), max(pages_of)), np.int32)
        for row, first, count in zip(tables, firsts, pages_of, strict=False):
            row[:count] = range(first, first + count)
        lengths = np.array([len(ids) for ids in targets], np.int32)
        ends = np.cumsum(lengths)
        step = StepBatch(
            input_ids=np.concatenate([np.array(ids, np.int64) for ids in targets]),
            positions=np.concatenate([np.arange(each, dtype=np.int32) for each in lengths]),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            context_lengths=lengths,
            block_table=tables,
            logit_rows=np.zeros(0, np.int64),
            sources=sources,
        )
        self._check(step)
        inputs = upload(step, self.place)
        x = self.place.empty(step.tokens, self.hidden_size)
        read = paged(inputs, step, cache.page_size)
        found = self._stack.source_queries(x, inputs, read, cache.planes, layers)
        of_layers = [np.split(self.place.numpy(queries), ends[:-1]) for queries in found]
        return list(zip(*of_layers, strict=True))

    def _encode(self, sources: SourceBatch, cache: DecoderCache) -> kernels.Tensor:
        """Returns keys and values of all layers, [tokens, 2 * layers * width], k | v of each."""
        lengths = np.diff(sources.cu_seqlens)
        self._check_sources(sources, lengths)
        step = StepBatch(
            input_ids=sources.input_ids,
            positions=self._positions(sources, lengths),
            cu_seqlens=sources.cu_seqlens,
            context_lengths=lengths,
            block_table=sources.block_table,
            logit_rows=np.zeros(0, np.int64),
        )
        inputs = upload(step, self.place)
        hidden = self.place.empty(step.tokens, self.hidden_size)
        named = self._read_by_encoder(sources, inputs)
        self._encoder.forward(hidden, named, inputs.sequences(sources.cu_seqlens))
        return self._store(hidden, paged(inputs, step, cache.page_size).batch, cache)

    def _positions(self, sources: SourceBatch, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        return text_positions(sources.input_ids, sources.cu_seqlens, lengths, self._padding_index)

    def _read_by_encoder(self, sources: SourceBatch, inputs: Inputs) -> NamedTensors:
        """Returns the tensors of the encoder's input block. `inputs`: the uploaded arrays."""
        return inputs

    def _store(
        self, hidden: kernels.Tensor, batch: kernels.PagedBatch, cache: DecoderCache
    ) -> kernels.Tensor:
        """Computes and stores keys and values of every layer for hidden states [tokens, hidden]."""
        width, stream = self._width, self.place.stream
        rows = self.place.matrix(hidden.shape[0], 2 * len(self._attentions) * width)
        kernels.linear(rows, hidden, self._keys_values, "none", stream)
        for layer in range(len(self._attentions)):
            planes = cache.keys_values(layer, self._heads)
            k, v = (rows.columns((2 * layer + part) * width, width) for part in (0, 1))
            kernels.store_kv(*planes, k, v, batch, 1.0, 1.0, stream)
        return rows

    def tune(self, cache: DecoderCache, max_sequences: int, max_tokens: int) -> None:
        """As the decoder's, and for the encoder for sources of up to `max_tokens` together."""
        super().tune(cache, max_sequences, max_tokens)
        rows = self.place.rows_to_tune(max_tokens)
        with self.place.tuning():
            for sources in self._warm_up_sources(rows, cache):
                self.encode(sources, cache)

    def _warm_up_sources(self, sizes: list[int], cache: DecoderCache) -> Iterator[SourceBatch]:
        """Yields batches with these numbers of tokens."""
        for step in warm_up_prompts(sizes, self.max_source_length, 0, cache):
            yield SourceBatch(step.input_ids, step.cu_seqlens, step.block_table)

    def _warm_up(
        self, sizes: list[int], max_logit_rows: int, cache: DecoderCache
    ) -> Iterator[StepBatch]:
        for step in super()._warm_up(sizes, max_logit_rows, cache):
            lengths = np.ones(step.sequences, np.int32)
            table = np.zeros((step.sequences, 1), np.int32)
            yield replace(step, sources=SourceTable(lengths, table))

    def _check_sources(self, sources: SourceBatch, lengths: NDArray[np.int32]) -> None:
        if lengths.size == 0 or lengths.min() < 1:
            raise InvalidInput("input_ids", "an empty source", "1 token or more", "leave it out")
        if lengths.max() > self.max_source_length:
            raise InvalidInput(
                "input_ids",
                f"a source of {lengths.max()} tokens",
                f"at most {self.max_source_length}",
                "shorten it",
            )
        within(
            "input_ids",
            sources.input_ids,
            self.source_vocab_size,
            "use the tokenizer of this model",
        )

    def _target_token(self, key: str, token: int | None) -> int:
        if token is None or token >= self.vocab_size:
            got = "nothing" if token is None else token
            raise CheckpointError(
                f"{key}: got {got}, wanted a token in 0..{self.vocab_size - 1}; name it in "
                "generation_config.json or config.json"
            )
        return token


def _alignment_pages(ids: Sequence[int]) -> int:
    return -(-len(ids) // _ALIGNMENT_PAGE)


def _passes(lengths: Sequence[int], most: int) -> list[slice]:
    """Returns consecutive runs of texts, each with at most `most` tokens, or of a single text."""
    begins, tokens = [0], 0
    for index, length in enumerate(lengths):
        if tokens and tokens + length > most:
            begins.append(index)
            tokens = 0
        tokens += length
    return [slice(*each) for each in pairwise([*begins, len(lengths)])]


def _together(attentions: list[CrossAttention]) -> Dense:
    """Returns the keys and values of all layers as one matrix, k | v of the first, k | v of the
    second, …"""
    first = attentions[0].kv
    names = tuple(name for attention in attentions for name in attention.kv.names)
    unbiased = tuple(name for attention in attentions for name in attention.kv.unbiased)
    outputs = first.outputs * len(attentions)
    return replace(first, names=names, outputs=outputs, unbiased=unbiased)
