"""The rows of a request, before and after they are read (texts tokenised, images decoded)."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusewire.batch import Sequence
from fusewire.settings import EngineSettings

if TYPE_CHECKING:
    from tokenizers import Encoding

# At least as many as a token has on average, in any language.
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class TextRow:
    text: str
    pair: str | None = None

    @property
    def unread_tokens(self) -> int:
        """An estimate of the tokens that the row will have, not above the true number."""
        return -(-(len(self.text) + len(self.pair or "")) // _CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, eq=False)
class IdRow:
    """A client's own ids, without the tokens that its mask marks as padding.

    Positions count the remaining tokens, so that the answer for a sentence does not depend on its
    padding (right, left or scattered). transformers counts positions over a left-padded row with
    its padding, and there gives another answer for the same sentence.
    """

    input_ids: NDArray[np.int64]  # [n]
    token_type_ids: NDArray[np.integer[Any]]  # [n]
    places: NDArray[np.int64]  # [n], column of each token in the client's row
    width: int  # of the client's row, including padding
    unread_tokens = 0


@dataclass(frozen=True, eq=False)
class ImageRow:
    """An encoded image whose header has been read and checked."""

    data: bytes  # an opened image would keep its pixels in memory as long as the request
    pixels: int  # to be decoded
    unread_tokens: int


@dataclass(frozen=True, eq=False)
class PixelRow:
    """A client's own pixel values [3, height, width], all finite."""

    pixels: NDArray[np.float32]
    unread_tokens = 0


Row = TextRow | IdRow | ImageRow | PixelRow


@dataclass(frozen=True, eq=False)
class Tokens:
    """One sequence for the model, with the mapping from its tokens to the client's input.

    `encoding` is the tokenizer's record of a text, or None for a client's own ids.
    """

    sequence: Sequence
    places: NDArray[np.int64]  # [n], column of each token in the client's row
    width: int
    encoding: Encoding | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    @staticmethod
    def of_ids(row: IdRow) -> Tokens:
        """Returns the tokens of ids, which the caller has checked."""
        sequence = Sequence(row.input_ids, row.token_type_ids.astype(np.int32, copy=False))
        return Tokens(sequence, row.places, row.width)

    @staticmethod
    def of_text(encoding: Encoding, *, uses_types: bool) -> Tokens:
        """Returns the tokens of a text. `uses_types`: whether the model has token types; without
        them all are 0."""
        ids = np.array(encoding.ids, np.int64)
        types = (
            np.array(encoding.type_ids, np.int32) if uses_types else np.zeros(len(ids), np.int32)
        )
        return Tokens(Sequence(ids, types), np.arange(len(ids)), len(ids), encoding)


@dataclass(frozen=True, eq=False)
class Pixels:
    """One image for the model."""

    values: NDArray[np.float32]  # [3, height, width]
    tokens: int

    def __len__(self) -> int:
        return self.tokens


@dataclass(eq=False)
class Query:
    """A request that has been read: its effective settings, its rows, and their sequences.

    `tokens[row]` has one entry, or several where a task reads a long row in windows.
    """

    settings: EngineSettings
    rows: Sequences[Row]
    prompt: str = ""  # before each text
    tokens: list[list[Any]] = field(default_factory=list)  # Tokens of a text, Pixels of an image

    @property
    def unread_tokens(self) -> int:
        """An estimate of the tokens that its rows will have."""
        return sum(row.unread_tokens for row in self.rows)

    @property
    def undecoded_pixels(self) -> int:
        """The number of pixels of its encoded images."""
        return sum(row.pixels for row in self.rows if isinstance(row, ImageRow))
