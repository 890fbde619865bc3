"""The running beams of searches as rows of the next step.

Hundreds of beams take a step in less than a millisecond: what there is of each is a row of arrays
that all searches share, and no object is made for a search that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NO_TABLE = np.zeros((0, 0), np.int32)


class BeamRows(NamedTuple):
    """The running beams of a sequence, a row of the next step each."""

    tokens: NDArray[np.int64]  # [beams], to store and to go on from
    position: int  # the same for all of them
    block_table: NDArray[np.int32]  # [beams, pages up to the position or more]
    stored: int  # tokens stored after the prompt, those of each beam counted

    def __len__(self) -> int:
        return int(self.tokens.size)


class StepRows:
    """The rows of sequences that take their steps together, end to end, kept from step to step:
    those of sequence i are rows offsets[i] to offsets[i + 1]."""

    def __init__(
        self,
        sequences: Sequence[Any],
        prompts: NDArray[np.int32],
        positions: NDArray[np.int32],
        page_size: int,
    ) -> None:
        """Becomes the sequences' `rows`. `prompts`: tokens of each one's prompt. `positions`: those
        of each one's tokens before the next ones."""
        self.sequences = list(sequences)
        beams = [0 if each.rows is None else len(each.rows) for each in sequences]
        self.counts = np.array(beams, np.int32)  # rows of each
        self.of_each = [BeamRowsOf(self, index) for index in range(len(sequences))]
        for sequence, rows in zip(sequences, self.of_each, strict=True):
            sequence.rows = rows
        self.prompts = prompts
        self.positions = positions  # those of the next tokens of each
        self.most_tokens = np.array([each.most_tokens for each in sequences], np.int32)
        self.beams = np.array([each.beams for each in sequences], np.int32)  # of each, at most
        # The sources of the rows, with the numbers of rows that they were made for.
        self.sources: tuple[NDArray[np.int32], Any] | None = None
        self._page_size = page_size
        self._begin()

    def _begin(self) -> None:
        """Sets what is not kept for each sequence by itself: no step was taken yet."""
        self.offsets = offsets_of(self.counts)
        self.least_left = int((self.most_tokens - self.positions).min())  # fewest positions
        self.most_rows = int(self.beams.sum())
        # The numbers of steps from here on, modulo page_size, after which a page of a sequence
        # begins.
        self._begins = {*(-self.positions % self._page_size).tolist()}
        self._steps = 0
        self._places: NDArray[np.int32] | None = None
        self.tokens = np.zeros(0, np.int64)
        self._table: Callable[[], NDArray[np.int32]] | NDArray[np.int32] = _NO_TABLE

    def rest(self, still: Sequence[int]) -> StepRows:
        """The rows of the sequences at the places `still`, in order, which go on without the
        others."""
        rest, some = copy(self), np.array(still)
        rest.sequences = [self.sequences[at] for at in still]
        rest.of_each = [self.of_each[at] for at in still]
        for index, rows in enumerate(rest.of_each):
            rows.step, rows.index = rest, index
        rest.counts, rest.beams = self.counts[some], self.beams[some]
        rest.prompts, rest.positions = self.prompts[some], self.positions[some]
        rest.most_tokens = self.most_tokens[some]
        if self.sources is not None:
            counts, table = self.sources
            kept = np.zeros(len(counts), np.bool_)
            kept[some] = True
            kept = kept.repeat(counts)
            table = table and replace(
                table, lengths=table.lengths[kept], block_table=table.block_table[kept]
            )
            rest.sources = counts[some], table
        rest._begin()
        return rest

    def are_of(self, sequences: Sequence[Any]) -> bool:
        """Whether the next step of these sequences, in this order, has these rows and no others."""
        return [sequence.rows for sequence in sequences] == self.of_each

    def go_on(
        self,
        offsets: NDArray[np.int32],
        tokens: NDArray[np.int64],
        block_table: Callable[[], NDArray[np.int32]],
    ) -> None:
        """Goes on to the next step, one position further. `block_table`: called when somebody on
        the host wants to know it."""
        self.positions = self.positions + 1
        self.least_left -= 1
        self._steps += 1
        if self.begins(1):
            self._places = None
        self.offsets, self.tokens, self._table = offsets, tokens, block_table
        self.counts = offsets[1:] - offsets[:-1]

    @property
    def stored(self) -> int:
        """Tokens stored after the prompts, those of each beam counted."""
        return int(np.dot(self.positions - self.prompts, self.counts))

    def begins(self, steps: int) -> bool:
        """Whether a page of a sequence begins with its position `steps` steps later."""
        return (self._steps + steps) % self._page_size in self._begins

    @property
    def most_in_page(self) -> int:
        """How many positions are stored in the page of a sequence's next position but one by then,
        at most."""
        return max([(self._steps + 1 - begin) % self._page_size for begin in self._begins])

    def pages_for_forks(self, steps: int) -> list[int]:
        """Pages that the fork of each sequence takes `steps` steps later; empty where none takes
        any."""
        if not self.begins(steps):
            return []
        begins = (self.positions + steps) % self._page_size == 0
        # No beam goes on from the last position.
        begins &= self.positions + steps + 1 < self.most_tokens
        pages: list[int] = (begins * self.beams).tolist()
        return pages

    @property
    def may_end(self) -> bool:
        """Where some rows give their last tokens: whether the next step may have rows of all
        searches, as others go on; for those that are done it computes in vain. Not where one of
        these would begin a page, as none is reserved for it."""
        ends = self.most_tokens - self.positions <= 2
        begins = (self.positions + 1) % self._page_size == 0
        return not (ends.all() or (ends & begins).any())

    @property
    def places(self) -> NDArray[np.int32]:
        """Index in its block table of the page of each sequence's next position but one: the same
        array as long as these do not change."""
        if self._places is None:
            self._places = (self.positions + 1) // self._page_size
        return self._places

    @property
    def block_table(self) -> NDArray[np.int32]:
        """The block table of the rows, [rows, pages up to the last position of all, or more]."""
        if callable(self._table):
            self._table = self._table()
        return self._table


def offsets_of(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """The offset of the first row of each, and at last the end of all: [n + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


class BeamRowsOf:
    """The rows of one sequence in a StepRows, as they are at the time."""

    __slots__ = ("index", "step")

    def __init__(self, step: StepRows, index: int) -> None:
        self.step = step
        self.index = index

    def __len__(self) -> int:
        return int(self.step.counts[self.index])

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self.step.tokens[self._own]

    @property
    def position(self) -> int:
        return int(self.step.positions[self.index])

    @property
    def block_table(self) -> NDArray[np.int32]:
        return self.step.block_table[self._own]

    @property
    def stored(self) -> int:
        step, index = self.step, self.index
        return int((step.positions[index] - step.prompts[index]) * step.counts[index])

    @property
    def _own(self) -> slice:
        return slice(*self.step.offsets[self.index : self.index + 2].tolist())
