"""Packed batches: sequences of tokens end to end, with their boundaries, without padding."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Sequence:
    """The tokens of one sequence: `input_ids` int64 [n], `token_type_ids` int32 [n], n >= 1."""

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences packed end to end; sequence s owns tokens cu_seqlens[s] to cu_seqlens[s + 1]."""

    input_ids: NDArray[np.int64]  # [tokens]
    token_type_ids: NDArray[np.int32]  # [tokens]
    cu_seqlens: NDArray[np.int32]  # [sequences + 1], from 0 to tokens
    max_seqlen: int

    @staticmethod
    def pack(sequences: Sequences[Sequence]) -> Batch:
        """Packs sequences end to end, in order. Raises ValueError when there are none or one is
        empty."""
        lengths = [len(sequence) for sequence in sequences]
        if not lengths or min(lengths) == 0:
            raise ValueError(f"sequences: got lengths {lengths}, wanted one or more, each >= 1")
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        return Batch(
            np.concatenate([sequence.input_ids for sequence in sequences]),
            np.concatenate([sequence.token_type_ids for sequence in sequences]),
            cu_seqlens,
            max(lengths),
        )

    @property
    def tokens(self) -> int:
        return int(self.cu_seqlens[-1])

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    def rows(self, sequence: int) -> slice:
        """The rows of a sequence's tokens in every [tokens, ...] array of this batch."""
        return slice(int(self.cu_seqlens[sequence]), int(self.cu_seqlens[sequence + 1]))
