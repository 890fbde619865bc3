"""Several sequences in one cache, computed step by step. Their pages, and those of their sources,
are scattered over it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from fusewire.models.decoder import DecoderModel
from fusewire.models.seq2seq_model import Seq2SeqModel, SourceBatch
from fusewire.models.step_batch import SourceTable, StepBatch
from numpy.typing import NDArray

Logits = NDArray[np.float32]

LONGEST_TEXT = 512  # for models without a maximum length (T5)


def _table(pages: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Returns the page table, -1 where a sequence has no page."""
    table = np.full((len(pages), max(map(len, pages))), -1, np.int32)
    for row, each in zip(table, pages, strict=True):
        row[: len(each)] = each
    return table


class PagedTexts:
    """`step` appends tokens to some of the sequences; pages are allocated in random order.
    `sources`: those of an encoder-decoder model, one for each sequence."""

    def __init__(
        self,
        model: DecoderModel,
        sequences: int,
        page_size: int = 4,
        seed: int = 0,
        sources: Sequence[Sequence[int]] = (),
    ) -> None:
        each = -(-min(model.max_length, LONGEST_TEXT) // page_size)
        self.model = model
        self.page_size = page_size
        counts = [-(-len(source) // page_size) for source in sources]
        self.cache = model.new_cache(sequences * each + sum(counts), page_size)
        self.lengths = [0] * sequences
        self.pages: list[list[int]] = [[] for _ in range(sequences)]
        self._free = np.random.default_rng(seed).permutation(self.cache.pages).tolist()
        self.source_lengths = [len(source) for source in sources]
        self.source_pages = [[self.take_page() for _ in range(count)] for count in counts]
        if sources:
            self.encode(sources)

    def take_page(self) -> int:
        return self._free.pop()

    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        assert isinstance(self.model, Seq2SeqModel)
        batch = SourceBatch(
            input_ids=np.concatenate(sources).astype(np.int64),
            cu_seqlens=np.cumsum([0, *self.source_lengths]).astype(np.int32),
            block_table=self.sources_of(range(len(sources))).block_table,
        )
        self.model.encode(batch, self.cache)

    def sources_of(self, sequences: Sequence[int]) -> SourceTable:
        return SourceTable(
            lengths=np.array([self.source_lengths[i] for i in sequences], np.int32),
            block_table=_table([self.source_pages[i] for i in sequences]),
        )

    def step(self, new: Sequence[tuple[int, Sequence[int]]], last: bool = False) -> list[Logits]:
        """Returns the logits of each sequence's new rows, or of the last of them. `new`: (sequence,
        ids), at most once for each sequence."""
        for sequence, ids in new:
            self.lengths[sequence] += len(ids)
            while len(self.pages[sequence]) * self.page_size < self.lengths[sequence]:
                self.pages[sequence].append(self.take_page())
        counts = [len(ids) for _, ids in new]
        begins = np.concatenate([[0], np.cumsum(counts)])
        contexts = [self.lengths[sequence] for sequence, _ in new]
        chosen = [sequence for sequence, _ in new]
        rows = begins[1:] - 1 if last else np.arange(begins[-1])
        batch = StepBatch(
            input_ids=np.concatenate([ids for _, ids in new]).astype(np.int64),
            positions=np.concatenate(
                [np.arange(end - n, end) for n, end in zip(counts, contexts, strict=True)]
            ).astype(np.int32),
            cu_seqlens=begins.astype(np.int32),
            context_lengths=np.array(contexts, np.int32),
            block_table=_table([self.pages[sequence] for sequence in chosen]),
            logit_rows=rows.astype(np.int64),
            sources=self.sources_of(chosen) if self.source_lengths else None,
        )
        logits = self.model.place.numpy(self.model.step(batch, self.cache))
        if last:
            return list(logits)
        return [logits[begin:end] for begin, end in itertools.pairwise(begins)]


def logits_in_pieces(
    model: DecoderModel,
    sequences: Sequence[Sequence[int]],
    most: int | None,
    seed: int = 0,
    sources: Sequence[Sequence[int]] = (),
    page_size: int = 4,
) -> list[Logits]:
    """Returns the logits of every token: prompts are computed whole (`most` None), or in pieces of
    random lengths up to `most`, with the sequences in random order and some of them left out of
    every step."""
    rng = np.random.default_rng(seed)
    texts = PagedTexts(model, len(sequences), page_size, seed=seed, sources=sources)
    found: list[list[Logits]] = [[] for _ in sequences]
    while left := [i for i, ids in enumerate(sequences) if texts.lengths[i] < len(ids)]:
        chosen = rng.permutation(left)
        if most is not None:
            chosen = chosen[: rng.integers(1, len(left) + 1)]
        new = []
        for i in chosen.tolist():
            begin = texts.lengths[i]
            end = None if most is None else begin + int(rng.integers(1, most + 1))
            new.append((i, sequences[i][begin:end]))
        for (i, _), logits in zip(new, texts.step(new), strict=True):
            found[i].append(logits)
    return [np.concatenate(pieces) for pieces in found]


def greedy(
    model: DecoderModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    seed: int = 0,
    sources: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Returns the greedy continuation of each prompt, all of them generated at once."""
    texts = PagedTexts(model, len(prompts), seed=seed, sources=sources)
    new: list[tuple[int, Sequence[int]]] = list(enumerate(prompts))
    written: list[list[int]] = [[] for _ in prompts]
    for _ in range(tokens):
        logits = texts.step(new, last=True)
        new = [(i, [int(row.argmax())]) for i, row in enumerate(logits)]
        for i, (token,) in new:
            written[i].append(token)
    return written
