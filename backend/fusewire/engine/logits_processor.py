"""What parameters and the texts so far change in the logits of the next tokens, or in the
log-probabilities of beams: biases, bans, penalties and masks.

In the order of transformers' `generate`: biases and bans, which are biases of -inf, then penalties
for tokens of the source and of the text, then masks. Each state has as many rows as its history.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.sampling_state import SamplingState
from fusewire.placement import Placement

_NAMES = {np.dtype(name): name for name in ("float32", "int32")}


class Changes(NamedTuple):
    """What is to be applied to the rows of these states, of which some are changed."""

    states: Sequence[SamplingState]
    biases: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]  # rows, tokens, values
    seen: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]  # offsets, tokens, counts
    of_sources: bool
    masked: bool


class LogitsProcessor:
    """Changes logits where a model is placed, with its vocabulary."""

    def __init__(self, place: Placement, vocab_size: int) -> None:
        self._place = place
        self._vocab_size = vocab_size

    def process(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Changes logits or log-probabilities [rows, vocab] by the parameters of the states."""
        masked = any([state.mask is not None for state in states])
        changes = self.changes(states, [state.history for state in states], masked=masked)
        if changes is not None:
            self.apply(logits, changes, penalties_of(states))

    def changes(
        self,
        states: Sequence[SamplingState],
        histories: Sequence[kernels.TokenHistories],
        *,
        masked: bool,
    ) -> Changes | None:
        """What the states change in the rows of their next tokens; None: nothing. `histories`: the
        states' own; `masked`: whether any has a mask."""
        biases, seen = kernels.token_biases(histories), kernels.seen_tokens(histories)
        of_sources = any([len(state.source_tokens) for state in states])
        if len(biases[0]) or len(seen[1]) or of_sources or masked:
            return Changes(states, biases, seen, of_sources, masked)
        return None

    def apply(
        self, logits: kernels.Tensor, changes: Changes, penalties: NDArray[np.float32]
    ) -> None:
        """Applies changes to logits [rows, vocab], with the `penalties_of` their states."""
        self.bias(logits, self._known(changes.biases))
        if changes.of_sources:
            self._penalize_sources(logits, changes.states)
        self._penalize(logits, changes.seen, penalties)
        if changes.masked:
            self._mask(logits, changes.states)

    def biases(self, histories: Sequence[kernels.TokenHistories]) -> list[kernels.Tensor]:
        """Biases and bans of the next tokens of `histories`, on the device, for `bias`."""
        return self._known(kernels.token_biases(histories))

    def bias(self, logits: kernels.Tensor, biases: Sequence[kernels.Tensor]) -> None:
        """Adds biases and bans to logits or log-probabilities [rows, vocab]."""
        kernels.bias_logits(logits, *biases, self._place.stream)

    def _known(
        self, biases: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
    ) -> list[kernels.Tensor]:
        rows, tokens, values = biases
        # A folder may name a stop token that its model's vocabulary has not.
        known = (tokens >= 0) & (tokens < self._vocab_size)
        return self._upload(rows[known], tokens[known], values[known])

    def _penalize_sources(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Applies encoder_repetition_penalty, which is the reciprocal of one for repetition."""
        rows = [state.history.rows for state in states]
        # An encoder may have a larger vocabulary than the model writes.
        known = [each.source_tokens[each.source_tokens < self._vocab_size] for each in states]
        of_rows = [tokens for tokens, count in zip(known, rows, strict=True) for _ in range(count)]
        offsets = np.array([0, *accumulate(map(len, of_rows))], np.int32)
        tokens = np.concatenate(of_rows)
        asked = [state.parameters.encoder_repetition_penalty for state in states]
        penalties = np.zeros((3, len(of_rows)), np.float32)
        penalties[0] = 1 / np.array(asked, np.float32).astype(np.float64).repeat(rows)
        self._penalize(logits, (offsets, tokens, np.zeros(len(tokens), np.int32)), penalties)

    def _penalize(
        self,
        logits: kernels.Tensor,
        seen: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
        penalties: NDArray[np.float32],
    ) -> None:
        if len(seen[1]):
            kernels.penalize(logits, *self._upload(*seen, *penalties), self._place.stream)

    def _mask(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Forbids what masks forbid, and all text where timestamps are likelier together than any
        of them."""
        ends = list(accumulate([state.history.rows for state in states], initial=0))
        masks = [
            (state.mask, begin, end)
            for state, begin, end in zip(states, ends, ends[1:], strict=False)
            if state.mask is not None
        ]
        forbidden = np.zeros((ends[-1], self._vocab_size), bool)
        firsts = np.zeros(ends[-1], np.int64)  # the first timestamp of each row; 0: it has none
        for mask, begin, end in masks:
            forbidden[begin:end] = mask.forbidden(self._vocab_size)
            firsts[begin:end] = mask.timestamp_begin
        self._forbid(logits, *forbidden.nonzero())
        for first in {mask.timestamp_begin for mask, *_ in masks if mask.timestamp_begin}:
            likelier = (firsts == first) & self._timestamps_are_likelier(logits, first)
            rows = likelier.nonzero()[0]
            self._forbid(logits, rows.repeat(first), np.tile(np.arange(first), len(rows)))

    def _timestamps_are_likelier(self, logits: kernels.Tensor, first: int) -> NDArray[np.bool_]:
        """Whether the tokens from `first` on are, together, likelier than each before them:
        [rows]."""
        rows, stream = logits.shape[0], self._place.stream
        together = self._place.empty(rows, dtype="float32")
        best = self._place.empty(rows, 1, dtype=logits.dtype)
        at = self._place.empty(rows, 1, dtype="int64")
        timestamps = logits.columns(first, self._vocab_size - first)
        kernels.log_sum_exp(together, timestamps, stream)
        kernels.top_k(best, at, logits.columns(0, first), stream)
        likelier: NDArray[np.bool_] = self._place.numpy(together) > self._place.numpy(best)[:, 0]
        return likelier

    def _forbid(
        self, logits: kernels.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> None:
        if len(rows):
            values = np.full(len(rows), -np.inf, np.float32)
            self.bias(logits, self._upload(rows.astype(np.int32), tokens.astype(np.int32), values))

    def _upload(self, *arrays: NDArray[Any]) -> list[kernels.Tensor]:
        """Copies vectors to the device, in one copy."""
        ends = list(accumulate((-(-array.nbytes // 8) * 8 for array in arrays), initial=0))
        host = np.zeros(ends[-1], np.uint8)
        for array, begin in zip(arrays, ends, strict=False):
            host[begin : begin + array.nbytes].view(array.dtype)[:] = array
        there = self._place.exact(host, np.uint8)
        return [
            there.section(begin, [len(array)], _NAMES[array.dtype])
            for array, begin in zip(arrays, ends, strict=False)
        ]


def penalties_of(states: Sequence[SamplingState]) -> NDArray[np.float32]:
    """Penalties for repetition, presence and frequency of the rows of these states: [3, rows]."""
    of_each = np.frombuffer(b"".join([state.rules.penalties for state in states]), np.float32)
    return of_each.reshape(-1, 3).T.repeat([state.history.rows for state in states], axis=1)
