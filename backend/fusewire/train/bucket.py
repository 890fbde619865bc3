"""Padded batches of one bucket of sizes, packed into tensors whose addresses do not change: the
input of a recorded step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import power_of_two
from fusewire.train.packed import Packed, Rows
from fusewire.train.sent_tensors import Kind
from fusewire.train.torch_tensors import view

# Buckets of tokens in an octave, and the multiple that a row's places are rounded up to.
_STEPS, _PLACES = 16, 32


def bucket_of(rows: int, length: int, tokens: int) -> tuple[int, int, int]:
    """The rows, places per row and tokens that a batch is computed with: its own, rounded up."""
    step = max(1, power_of_two(tokens) // (2 * _STEPS))
    return rows, -(-length // _PLACES) * _PLACES, -(-tokens // step) * step


class PackedBucket(Packed):
    """Packed batches [rows, length] of up to `tokens` tokens, written one after another.

    Missing tokens form a sequence of their own behind the others. They are copies of the first
    token; their results are dropped and they have no gradient.
    """

    def __init__(
        self,
        rows: int,
        length: int,
        tokens: int,
        tensors: Mapping[str, torch.Tensor],
        *,
        predicts: bool = False,
    ) -> None:
        """`tensors`: the tensors of `kinds` that steps read. `predicts`: whether all labels of the
        batches are predicted by tokens."""
        self.shape = rows, length
        self.rows_begin = True
        self._tokens, self._longest = tokens, 0
        self._index = tensors["index"]
        self._places = tensors["places"]
        self._predicts = predicts and tokens < rows * length
        self._offsets = tensors["offsets"]
        longest = max(length, tokens // _STEPS + 1)
        self.batch = SequenceBatch.bucket(view(self._offsets), tokens, longest)

    @staticmethod
    def kinds(rows: int, tokens: int) -> dict[str, Kind]:
        """The place of each token in the concatenated rows; the same with a place behind the rows
        for missing tokens; the offsets of the sequences."""
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

    @property
    def predicting(self) -> Rows | None:
        return Rows(self._index, self._places) if self._predicts else None

    def write(
        self, there: torch.Tensor, lengths: torch.Tensor, to: Mapping[str, torch.Tensor]
    ) -> None:
        """Writes a batch to `to`, tensors on the CPU that are sent to `tensors`. there bool [rows,
        length or less] and lengths [rows] are on the CPU."""
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
        if self._offsets.device.type == "cpu":  # CPU kernels read offsets when they are called
            self.batch = SequenceBatch(view(offsets if missing else offsets[:-1].clone()))

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = self.shape
        padded = tokens.new_zeros(rows * length + 1, tokens.shape[1])
        return padded.index_copy(0, self._places, tokens)[:-1].view(rows, length, -1)
