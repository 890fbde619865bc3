"""Batches of one bucket of sizes, packed into tensors whose addresses do not change: the input of a
recorded step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from fusewire.kernels import SequenceBatch
from fusewire.models.buckets import power_of_two
from fusewire.train.packed import Packed, Rows
from fusewire.train.sent_tensors import Kind
from fusewire.train.torch_tensors import view

# Buckets of tokens in an octave, and the multiple that a row's places are rounded up to.
_STEPS, _PLACES = 16, 32


class Bucket(NamedTuple):
    """The sizes that a batch is computed with: its own, rounded up. `sequences`: those of the
    batch, none longer than `longest`; `missing`: the number of those that its missing tokens form.
    `predicts`: whether all labels are predicted by tokens.
    """

    rows: int
    places: int
    tokens: int
    sequences: int
    longest: int
    missing: int
    predicts: bool


def places_of(length: int) -> int:
    """The places per row that rows of `length` are computed with."""
    return -(-length // _PLACES) * _PLACES


def longest_of(length: int) -> int:
    """The length of the longest sequence that a flattened batch is computed with. It selects
    kernels, and no tensor has it as a size, so that few buckets are better than close ones."""
    return power_of_two(max(length, _PLACES))


def step_of(tokens: int) -> int:
    """The multiple that a number of tokens is rounded up to."""
    return max(1, power_of_two(tokens) // (2 * _STEPS))


def missing_of(longest: int, tokens: int) -> int:
    """The number of sequences for the missing tokens of a batch of `tokens`, so that none is longer
    than `longest`: for batches of short sequences there are kernels of their own."""
    return -(-step_of(tokens) // max(1, longest - 1))


class PackedBucket(Packed):
    """Packed batches [rows, places] of up to `tokens` tokens, written one after another.

    Missing tokens form sequences of their own behind the others. They are copies of the first
    token; their results are dropped and they have no gradient. Missing sequences are empty.
    """

    def __init__(self, bucket: Bucket, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors`: the tensors of `kinds` that steps read."""
        self.shape = bucket.rows, bucket.places
        self.rows_begin = True
        self._tokens, self._longest = bucket.tokens, 0
        self._sequences, self._missing = bucket.sequences, bucket.missing
        self._index = tensors["index"]
        self._places = tensors["places"]
        self._predicts = bucket.predicts and bucket.tokens < bucket.rows * bucket.places
        self._offsets = tensors["offsets"]
        most_missing = step_of(bucket.tokens) + bucket.missing
        longest = max(bucket.longest, -(-most_missing // bucket.missing))
        self.batch = SequenceBatch.bucket(view(self._offsets), bucket.tokens, longest)

    @staticmethod
    def kinds(bucket: Bucket) -> dict[str, Kind]:
        """The place of each token in the concatenated rows; the same with a place behind the rows
        for missing tokens; the offsets of the sequences."""
        return {
            "index": Kind((bucket.tokens,), torch.int64),
            "places": Kind((bucket.tokens,), torch.int64),
            "offsets": Kind((bucket.sequences + bucket.missing + 1,), torch.int32),
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
        length or less] and lengths [sequences or less] are on the CPU."""
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
        offsets[0] = 0
        offsets[1 : len(lengths) + 1] = lengths.cumsum(0)
        offsets[len(lengths) + 1 : self._sequences + 1] = count
        parts = torch.arange(1, self._missing + 1)
        offsets[self._sequences + 1 :] = count + missing * parts // self._missing
        if self._offsets.device.type == "cpu":  # CPU kernels read offsets when they are called
            self.batch = SequenceBatch(view(offsets.unique_consecutive()))

    def unpack(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = self.shape
        padded = tokens.new_zeros(rows * length + 1, tokens.shape[1])
        return padded.index_copy(0, self._places, tokens)[:-1].view(rows, length, -1)
