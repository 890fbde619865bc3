"""The sequences that a step takes on by one token each, as most of them are in most steps.

What a step needs of each is kept from step to step and changes where a sequence joins or leaves,
or gets a page. Pages are asked for only where the next token may need one (a sequence has joined,
its last page is full, or a fork has it too), so a step costs the scheduler little beside its number
of pages that have become full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.generation_sequence import GenerationSequence, Ranked
from fusewire.engine.kv_cache import KvCache


@dataclass(eq=False)
class Rows:
    """The sequences of rows: one object until another joins or one leaves. What packing and the
    loop make of these is kept with it."""

    sequences: tuple[GenerationSequence, ...] = ()  # by rank
    sources: Any = None
    owners: Any = None


class Decodes(NamedTuple):
    """The last tokens of running sequences, one each, which a step computes and stores."""

    rows: Rows
    positions: NDArray[np.int32]  # [sequences]
    block_table: NDArray[np.int32]  # [sequences, pages of the longest]

    @staticmethod
    def none() -> Decodes:
        return Decodes(Rows(), *_NONE)


_NONE = np.zeros(0, np.int32), np.zeros((0, 0), np.int32)


class DecodeRows:
    """Running sequences that have one token left in every step. A slot of the table is a sequence's
    until it leaves."""

    def __init__(self, page_size: int) -> None:
        # Sequences whose next token may need a page, in the order in which that was known.
        self.growing: dict[GenerationSequence, None] = {}
        self._page_size = page_size
        self._slots: dict[GenerationSequence, int] = {}
        self._free: list[int] = []
        self._table = np.zeros((0, 0), np.int32)  # [slots, pages]
        self._sequences = Ranked()
        self._rows: Rows | None = None  # of `_sequences`, unless they have changed
        self._last: Rows | None = None  # the last ones, of which some may have left since
        self._order = np.zeros(0, np.intp)  # their slots

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[GenerationSequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: GenerationSequence) -> bool:
        return sequence in self._slots

    def are_of(self, rows: Rows) -> bool:
        """Whether the sequences here are those of `rows` that have not left."""
        return self._last is rows

    def join(self, sequence: GenerationSequence) -> None:
        """Adds a sequence, which has one token left from here on."""
        self._sequences.add(sequence)
        self._rows = self._last = None
        if not self._free:
            count = len(self._table)
            self._free = list(range(2 * count, count - 1, -1))
            self._widen(rows=2 * count + 1)
        self._slots[sequence] = self._free.pop()
        self.growing[sequence] = None
        self.refresh(sequence)

    def leave(self, sequence: GenerationSequence) -> None:
        """Removes a sequence that does not run any more, if it is here."""
        if sequence not in self._slots:
            return
        self._sequences.remove(sequence)
        self._rows = None
        self._free.append(self._slots.pop(sequence))
        self.growing.pop(sequence, None)

    def share(self, sequence: GenerationSequence) -> None:
        """Takes note that a fork of the sequence, which may be here, has its last page too."""
        if sequence in self._slots:
            self.growing[sequence] = None

    def grow(self, cache: KvCache) -> list[tuple[int, int]]:
        """Makes room for the next token of each sequence; returns the page copies to make."""
        copies = []
        for sequence in self.growing:
            assert sequence.pages is not None
            copies += cache.reserve(sequence.pages, sequence.stored + 1)
            self.refresh(sequence)
        self.growing.clear()
        return copies

    def store(self, sequences: Sequence[GenerationSequence], cache: KvCache) -> None:
        """Takes note that a step has stored the last token of each of these, which were here when
        it was planned."""
        size, stored = cache.page_size, 0
        for sequence in sequences:
            pages = sequence.pages
            if pages is None:  # finished meanwhile
                continue
            sequence.stored = length = sequence.stored + 1
            if length % size:
                pages.length = length
                stored += 1
            else:  # its page is full, and may be another's from here on
                cache.advance(pages, sequence.token_ids, length)
                self.growing[sequence] = None
        cache.live_tokens += stored

    def refresh(self, sequence: GenerationSequence) -> None:
        """Takes over the pages of a sequence, which have changed."""
        assert sequence.pages is not None
        table = sequence.pages.table
        if len(table) > self._table.shape[1]:
            self._widen(pages=2 * len(table))
        self._table[self._slots[sequence], : len(table)] = table

    def decodes(self) -> Decodes:
        if self._rows is None:
            self._rows = self._last = Rows(tuple(self._sequences))
            self._order = np.array([self._slots[each] for each in self._sequences], np.intp)
        if not self._sequences:
            return Decodes(self._rows, *_NONE)
        stored = [each.stored for each in self._sequences]
        width = max(stored) // self._page_size + 1
        table = self._table[:, :width].take(self._order, axis=0)
        return Decodes(self._rows, np.array(stored, np.int32), table)

    def _widen(self, rows: int = 0, pages: int = 0) -> None:
        before = self._table
        shape = max(rows, before.shape[0]), max(pages, before.shape[1])
        self._table = np.zeros(shape, np.int32)
        self._table[: before.shape[0], : before.shape[1]] = before
