"""Padded batches of one bucket of sizes, packed at places that stay: what a recorded step reads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import power_of_two
from fusewire.train.packed import Packed
from fusewire.train.sent_tensors import Kind
from fusewire.train.torch_tensors import view

# Of tokens in an octave, and places that rows are rounded up to.
_STEPS, _PLACES = 16, 32


def bucket_of(rows: int, length: int, tokens: int) -> tuple[int, int, int]:
    """The rows, places of a row and tokens that a batch is computed with: its own rounded up."""
    step = max(1, power_of_two(tokens) // (2 * _STEPS))
    return rows, -(-length // _PLACES) * _PLACES, -(-tokens // step) * step


class PackedBucket(Packed):
    """Packed batches [rows, length] of up to `tokens` tokens, written one after the other.

    Tokens that are missing are a sequence of their own behind the others: copies of the first
    token, whose results go nowhere and have no gradient.
    """

    def __init__(
        self, rows: int, length: int, tokens: int, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """`tensors`: of `kinds`, where steps read them."""
        self.shape = rows, length
        self.rows_begin = True
        self._tokens, self._longest = tokens, 0
        self._index = tensors["index"]
        self._places = tensors["places"]
        self._offsets = tensors["offsets"]
        longest = max(length, tokens // _STEPS + 1)
        self.batch = SequenceBatch.bucket(view(self._offsets), tokens, longest)

    @staticmethod
    def kinds(rows: int, tokens: int) -> dict[str, Kind]:
        """Of each token its place in rows that lie one behind the other; the same with a place
        behind them for the missing; where sequences begin."""
        return {
            "index": Kind((tokens,), torch.int64),
            "places": Kind((tokens,), torch.int64),
            "offsets": Kind((rows + 2,), torch.int32),
        }

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def longest(self) -> int:
        return self._longest

    def write(
        self, there: torch.Tensor, lengths: torch.Tensor, to: Mapping[str, torch.Tensor]
    ) -> None:
        """there bool [rows, length or less] and lengths [rows], on the CPU, as `to` is, which is
        sent to `tensors`."""
        rows, length = self.shape
        padded = torch.zeros(rows, length, dtype=torch.bool)
        padded[:, : there.shape[1]] = there
        self.rows_begin = bool(there[:, 0].all())
        self._longest = int(lengths.max())
        index = padded.flatten().nonzero().squeeze(1)
        count, missing = len(index), self._tokens - len(index)
        to["index"][:count] = to["places"][:count] = index
        to["index"][count:] = index[0]
        to["places"][count:] = rows * length
        offsets = to["offsets"]
        offsets[0], offsets[-1] = 0, self._tokens
        offsets[1:-1] = lengths.cumsum(0)
        if self._offsets.device.type == "cpu":  # whose kernels read offsets when they are called
            self.batch = SequenceBatch(view(offsets if missing else offsets[:-1].clone()))

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = self.shape
        padded = tokens.new_zeros(rows * length + 1, tokens.shape[1])
        return padded.index_copy(0, self._places, tokens)[:-1].view(rows, length, -1)
