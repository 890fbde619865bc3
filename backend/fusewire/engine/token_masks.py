"""Tokens that cannot come next, too many to be listed one by one: in the texts of one request that
go on together, a row each."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray


class TokenMask(Protocol):
    @property
    def timestamp_begin(self) -> int:
        """The first timestamp: the tokens from it on are timestamps, one of which comes where they
        are likelier together than any text token; 0: there are none."""

    def forbidden(self, vocab_size: int) -> NDArray[np.bool_]:
        """The tokens that cannot come next: [rows, vocab_size]."""

    def advance(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        """Row i becomes the row parents[i] with tokens[i] after it."""

    def fork(self) -> Self: ...


class OneOf:
    """Allows these tokens alone."""

    timestamp_begin = 0

    def __init__(self, tokens: Collection[int]) -> None:
        self._tokens = sorted(tokens)
        self._rows = 1

    def forbidden(self, vocab_size: int) -> NDArray[np.bool_]:
        mask = np.ones((self._rows, vocab_size), bool)
        mask[:, self._tokens] = False
        return mask

    def advance(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        self._rows = len(parents)

    def fork(self) -> Self:
        return copy(self)


class Timestamps:
    """The order of Whisper's timestamps (Radford et al., 2022): a text begins with one; they come
    in pairs, the end of a part and the beginning of the next, but for the first and the last; none
    is before the one in front of it, and none ends the part that it begins."""

    def __init__(self, begin: int, eos: int, max_initial: int | None = None) -> None:
        """Tokens below `eos` are text; a text begins with one of the first `max_initial` + 1
        timestamps, None: of all."""
        self.timestamp_begin = begin
        self._eos = eos
        self._most_at_first = None if max_initial is None else begin + max_initial
        self._length = 0
        # For each row: whether its last two tokens are timestamps, missing ones too; and the last
        # timestamp, or -1.
        self._ended = np.zeros(1, bool)
        self._ended_before = np.ones(1, bool)
        self._stamp = np.full(1, -1, np.int64)

    def forbidden(self, vocab_size: int) -> NDArray[np.bool_]:
        begin, mask = self.timestamp_begin, np.zeros((len(self._stamp), vocab_size), bool)
        mask[:, begin - 1] = True  # the token for a text without timestamps
        if not self._length:
            mask[:, :begin] = True
            if self._most_at_first is not None:
                mask[:, self._most_at_first + 1 :] = True
            return mask
        for row, ended, before, stamp in zip(
            mask, self._ended, self._ended_before, self._stamp, strict=True
        ):
            if ended and before:
                row[begin:] = True
            elif ended:
                row[: self._eos] = True
            if stamp >= 0:
                row[begin : stamp + (not ended or before)] = True
        return mask

    def advance(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        stamps = tokens >= self.timestamp_begin
        self._ended_before = self._ended[parents] if self._length else np.ones(len(parents), bool)
        self._ended = stamps
        self._stamp = np.where(stamps, tokens, self._stamp[parents])
        self._length += 1

    def fork(self) -> Self:
        return copy(self)  # its arrays are replaced, never written to
