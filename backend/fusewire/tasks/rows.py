"""The rows of a request: what they are before and after tokenising."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from fusewire.engine.batch import Sequence
from fusewire.engine.settings import EngineSettings


@dataclass(frozen=True)
class TextRow:
    text: str
    pair: str | None = None


@dataclass(frozen=True, eq=False)
class IdRow:
    """A client's own ids without the tokens its mask marks as padding.

    Positions count over the tokens that are left, so a sentence has one answer however it was
    padded: right, left or scattered. (transformers counts positions over a left-padded row as it
    stands, and there gives another answer for the same sentence.)
    """

    input_ids: NDArray[np.int64]  # [n]
    token_type_ids: NDArray[np.int32]  # [n]
    places: NDArray[np.int64]  # [n], where each token stood in the client's row
    width: int  # of the client's row, padding and all


@dataclass(frozen=True, eq=False)
class Tokens:
    """One sequence for the model, and the way back from its tokens to what the client sent.

    `encoding` is the tokenizer's record of a text, None for a client's own ids.
    """

    sequence: Sequence
    places: NDArray[np.int64]  # [n], column of each token in the request's own shape
    width: int
    encoding: Encoding | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    @staticmethod
    def of_ids(row: IdRow) -> Tokens:
        return Tokens(Sequence(row.input_ids, row.token_type_ids), row.places, row.width)

    @staticmethod
    def of_text(encoding: Encoding, *, uses_types: bool) -> Tokens:
        """`uses_types`: whether the model has token types; where not, all are 0."""
        ids = np.array(encoding.ids, np.int64)
        types = (
            np.array(encoding.type_ids, np.int32) if uses_types else np.zeros(len(ids), np.int32)
        )
        return Tokens(Sequence(ids, types), np.arange(len(ids)), len(ids), encoding)


@dataclass(eq=False)
class Query:
    """A request that was read: its effective settings, its rows, and their sequences.

    `tokens[row]` holds one entry, or several where a task reads a long row in windows.
    """

    settings: EngineSettings
    rows: list[TextRow] | list[IdRow]
    prompt: str = ""  # before each text
    tokens: list[list[Tokens]] = field(default_factory=list)
