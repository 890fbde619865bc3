"""The running beams of searches as rows of the next step.

Hundreds of beams take a step in less than a millisecond: what there is of each is a row of arrays
that all searches share, and no object is made for a search that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


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

    def __init__(self, sequences: Sequence[Any], positions: Sequence[int]) -> None:
        """They become the sequences' `rows`. `positions`: of the tokens before the next ones."""
        self.sequences = list(sequences)
        # Of each, as BeamRows has it.
        self.stored = np.array(
            [0 if each.rows is None else each.rows.stored for each in sequences], np.int64
        )
        self.of_each = [BeamRowsOf(self, index) for index in range(len(sequences))]
        for sequence, rows in zip(sequences, self.of_each, strict=True):
            sequence.rows = rows
        self.positions = np.array(positions, np.int32)  # of the next tokens of each
        self.most_tokens = np.array([each.most_tokens for each in sequences], np.int32)
        self.beams = np.array([each.beams for each in sequences], np.int32)  # at most
        self.counts = np.zeros(len(sequences), np.int32)  # of rows
        self.tokens = np.zeros(0, np.int64)
        self._table: Callable[[], NDArray[np.int32]] | NDArray[np.int32] = np.zeros(
            (0, 0), np.int32
        )
        self.ends: list[int] = []
        # A row of sources for each row, as it was made for so many rows of each sequence.
        self.sources: tuple[NDArray[np.int32], Any] | None = None

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
        self.tokens, self._table = tokens, block_table
        self.counts = offsets[1:] - offsets[:-1]
        self.ends = offsets.tolist()

    @property
    def block_table(self) -> NDArray[np.int32]:
        """Of the rows, [rows, pages up to the last position of all, or more]."""
        if callable(self._table):
            self._table = self._table()
        return self._table


class BeamRowsOf:
    """Those of one sequence among them, as they are at the time."""

    __slots__ = ("index", "step")

    def __init__(self, step: StepRows, index: int) -> None:
        self.step = step
        self.index = index

    def __len__(self) -> int:
        ends, index = self.step.ends, self.index
        return ends[index + 1] - ends[index]

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
        return int(self.step.stored[self.index])

    @property
    def _own(self) -> slice:
        return slice(self.step.ends[self.index], self.step.ends[self.index + 1])
