"""Several sequences in one cache, with their pages scattered over it, a step at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from fusewire.models.decoder import DecoderModel
from fusewire.models.step_batch import StepBatch
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class PagedTexts:
    """`step` appends tokens to some of the sequences; pages are taken in a random order."""

    def __init__(
        self, model: DecoderModel, sequences: int, page_size: int = 4, seed: int = 0
    ) -> None:
        each = -(-model.max_length // page_size)
        self.model = model
        self.page_size = page_size
        self.cache = model.new_cache(sequences * each, page_size)
        self.lengths = [0] * sequences
        self.pages: list[list[int]] = [[] for _ in range(sequences)]
        self._free = np.random.default_rng(seed).permutation(self.cache.pages).tolist()

    def take_page(self) -> int:
        return self._free.pop()

    def step(self, new: Sequence[tuple[int, Sequence[int]]], last: bool = False) -> list[Logits]:
        """`new`: (sequence, ids) once or not at all for each sequence. The logits of each one's
        new rows, or of the last of them."""
        for sequence, ids in new:
            self.lengths[sequence] += len(ids)
            while len(self.pages[sequence]) * self.page_size < self.lengths[sequence]:
                self.pages[sequence].append(self.take_page())
        counts = [len(ids) for _, ids in new]
        begins = np.concatenate([[0], np.cumsum(counts)])
        contexts = [self.lengths[sequence] for sequence, _ in new]
        width = max(len(self.pages[sequence]) for sequence, _ in new)
        table = np.full((len(new), width), -1)
        for row, (sequence, _) in enumerate(new):
            table[row, : len(self.pages[sequence])] = self.pages[sequence]
        rows = begins[1:] - 1 if last else np.arange(begins[-1])
        batch = StepBatch(
            input_ids=np.concatenate([ids for _, ids in new]).astype(np.int64),
            positions=np.concatenate(
                [np.arange(end - n, end) for n, end in zip(counts, contexts, strict=True)]
            ).astype(np.int32),
            cu_seqlens=begins.astype(np.int32),
            context_lengths=np.array(contexts, np.int32),
            block_table=table.astype(np.int32),
            logit_rows=rows.astype(np.int64),
        )
        logits = self.model.place.numpy(self.model.step(batch, self.cache))
        if last:
            return list(logits)
        return [logits[begin:end] for begin, end in itertools.pairwise(begins)]


def logits_in_pieces(
    model: DecoderModel, sequences: Sequence[Sequence[int]], most: int | None, seed: int = 0
) -> list[Logits]:
    """The logits of every token: prompts whole (`most` None), or in pieces of random lengths up to
    `most`, with the sequences in a random order and some of them left out at every step."""
    rng = np.random.default_rng(seed)
    texts = PagedTexts(model, len(sequences), seed=seed)
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
    model: DecoderModel, prompts: Sequence[Sequence[int]], tokens: int, seed: int = 0
) -> list[list[int]]:
    """The most likely continuation of each prompt, all of them at once."""
    texts = PagedTexts(model, len(prompts), seed=seed)
    new: list[tuple[int, Sequence[int]]] = list(enumerate(prompts))
    written: list[list[int]] = [[] for _ in prompts]
    for _ in range(tokens):
        logits = texts.step(new, last=True)
        new = [(i, [int(row.argmax())]) for i, row in enumerate(logits)]
        for i, (token,) in new:
            written[i].append(token)
    return written
