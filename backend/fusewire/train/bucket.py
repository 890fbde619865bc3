"""Padded batches of one bucket of sizes, packed at places that stay: what a recorded step reads."""

from __future__ import annotations

import torch

from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import power_of_two
from fusewire.train.packed import Packed
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

    def __init__(self, rows: int, length: int, tokens: int, device: torch.device) -> None:
        self.shape = rows, length
        self.rows_begin = True
        self._tokens, self._longest = tokens, 0
        self._index = torch.zeros(tokens, dtype=torch.int64, device=device)
        # Of each token in rows that lie one behind the other, a place behind them for the missing.
        self._places = torch.zeros_like(self._index)
        self._offsets = torch.zeros(rows + 2, dtype=torch.int32, device=device)
        longest = max(length, tokens // _STEPS + 1)
        self.batch = SequenceBatch.bucket(view(self._offsets), tokens, longest)

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def longest(self) -> int:
        return self._longest

    def write(self, there: torch.Tensor, lengths: torch.Tensor) -> None:
        """there bool [rows, length or less] and lengths [rows], on the CPU."""
        rows, length = self.shape
        padded = torch.zeros(rows, length, dtype=torch.bool)
        padded[:, : there.shape[1]] = there
        self.rows_begin = bool(there[:, 0].all())
        self._longest = int(lengths.max())
        index = padded.flatten().nonzero().squeeze(1)
        missing = self._tokens - len(index)
        places = torch.cat([index, index.new_full((missing,), rows * length)])
        index = torch.cat([index, index[:1].expand(missing)])
        ends = [lengths.new_zeros(1), lengths.cumsum(0), lengths.new_tensor([self._tokens])]
        offsets = torch.cat(ends).to(torch.int32)
        assert self._index is not None
        for to, values in (
            (self._index, index),
            (self._places, places),
            (self._offsets, offsets),
        ):
            to.copy_(values, non_blocking=True)
        if self._offsets.device.type == "cpu":  # whose kernels read offsets when they are called
            self.batch = SequenceBatch(view(offsets if missing else offsets[:-1].clone()))

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = self.shape
        padded = tokens.new_zeros(rows * length + 1, tokens.shape[1])
        return padded.index_copy(0, self._places, tokens)[:-1].view(rows, length, -1)
