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
    position: int  # of all of them
    block_table: NDArray[np.int32]  # [beams, pages up to the position or more]
    stored: int  # tokens behind the prompt, those of each beam counted

    def __len__(self) -> int:
        return int(self.tokens.size)


class StepRows:
    """The same of sequences that take their steps together, end to end, step after step: those of
    sequence i are rows offsets[i] to offsets[i + 1]."""

    def __init__(
        self,
        sequences: Sequence[Any],
        prompts: NDArray[np.int32],
        positions: NDArray[np.int32],
        page_size: int,
    ) -> None:
        """They become the sequences' `rows`. `positions`: of the tokens before the next ones, of
        which so many are the prompt's."""
        self.sequences = list(sequences)
        beams = [0 if each.rows is None else len(each.rows) for each in sequences]
        self.counts = np.array(beams, np.int32)  # of rows
        self.of_each = [BeamRowsOf(self, index) for index in range(len(sequences))]
        for sequence, rows in zip(sequences, self.of_each, strict=True):
            sequence.rows = rows
        self.prompts = prompts
        self.positions = positions  # of the next tokens of each
        self.most_tokens = np.array([each.most_tokens for each in sequences], np.int32)
        self.beams = np.array([each.beams for each in sequences], np.int32)  # at most
        # A row of sources for each row, as it was made for so many rows of each sequence.
        self.sources: tuple[NDArray[np.int32], Any] | None = None
        self._page_size = page_size
        self._begin()

    def _begin(self) -> None:
        """All but what is there of each: no step was taken yet."""
        self.offsets = offsets_of(self.counts)
        self.least_left = int((self.most_tokens - self.positions).min())  # positions, of any
        self.most_rows = int(self.beams.sum())
        # Behind how many steps from here on a page of one begins, less whole pages.
        self._begins = {*(-self.positions % self._page_size).tolist()}
        self._steps = 0
        self._places: NDArray[np.int32] | None = None
        self.tokens = np.zeros(0, np.int64)
        self._table: Callable[[], NDArray[np.int32]] | NDArray[np.int32] = _NO_TABLE

    def rest(self, still: Sequence[int]) -> StepRows:
        """Those of some of the sequences, in order, which go on without the others."""
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
        """Whether the next step of these, in this order, is of these rows and no others."""
        return [sequence.rows for sequence in sequences] == self.of_each

    def go_on(
        self,
        offsets: NDArray[np.int32],
        tokens: NDArray[np.int64],
        block_table: Callable[[], NDArray[np.int32]],
    ) -> None:
        """To the next step, one position further; `block_table` is asked for when somebody on the
        host wants to know it."""
        self.positions = self.positions + 1
        self.least_left -= 1
        self._steps += 1
        if self.begins(1):
            self._places = None
        self.offsets, self.tokens, self._table = offsets, tokens, block_table
        self.counts = offsets[1:] - offsets[:-1]

    @property
    def stored(self) -> int:
        """Tokens behind the prompts, those of each beam counted."""
        return int(np.dot(self.positions - self.prompts, self.counts))

    def begins(self, steps: int) -> bool:
        """Whether a page of one begins with its position behind so many steps."""
        return (self._steps + steps) % self._page_size in self._begins

    @property
    def most_in_page(self) -> int:
        """How many positions of the page of its next one but one are stored then, of any."""
        return max([(self._steps + 1 - begin) % self._page_size for begin in self._begins])

    def pages_for_forks(self, steps: int) -> list[int]:
        """How many the fork of each behind so many steps takes; empty where none takes any."""
        if not self.begins(steps):
            return []
        begins = (self.positions + steps) % self._page_size == 0
        # No beam goes on from the last position.
        begins &= self.positions + steps + 1 < self.most_tokens
        pages: list[int] = (begins * self.beams).tolist()
        return pages

    @property
    def may_end(self) -> bool:
        """Of rows of which some give their last tokens: whether others go on, and the next step may
        have rows of all, those of searches that are done in vain. No page is reserved for these."""
        ends = self.most_tokens - self.positions <= 2
        begins = (self.positions + 1) % self._page_size == 0
        return not (ends.all() or (ends & begins).any())

    @property
    def places(self) -> NDArray[np.int32]:
        """Where in its table the page of each one's next position but one lies: the same array as
        long as that is so."""
        if self._places is None:
            self._places = (self.positions + 1) // self._page_size
        return self._places

    @property
    def block_table(self) -> NDArray[np.int32]:
        """Of the rows, [rows, pages up to the last position of all, or more]."""
        if callable(self._table):
            self._table = self._table()
        return self._table


def offsets_of(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each one's rows begin, and at last where they end."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


class BeamRowsOf:
    """Those of one sequence among them, as they are at the time."""

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
