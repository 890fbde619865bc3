"""Logits become tokens, for all sequences of a step at once, each by its own parameters.

In the order of transformers' `generate`: biases and bans, penalties, then the draw (temperature,
top_k, top_p, min_p, typical_p). Log-probabilities are those of the logits as the model gave them,
as vLLM reports them. A draw depends on the row, the seed and how many tokens the sequence has, on
nothing else in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.sampling_state import DRAW, SamplingState
from fusewire.placement import Placement

__all__ = ["Drawn", "Sampler", "SamplingState"]

_NAMES = {np.dtype(name): name for name in ("float32", "int32", "int64")}
_DRAW = [(_NAMES[dtype], at) for dtype, at, *_ in (DRAW.fields or {}).values()]


class Drawn(NamedTuple):
    """The next token of a sequence; -1 where its row has no distribution: NaN or +inf among the
    logits, or `forbidden`, where the model has one of which the parameters leave nothing. A forced
    token has log-probability 0, as it is certain.
    `top_logprobs`: (token, log-probability), likeliest first. `rank`: the token's, 1 for the
    likeliest; known where a row of the batch asks for log-probabilities."""

    token: int
    logprob: float
    top_logprobs: Sequence[tuple[int, float]] = ()
    rank: int = 0
    forbidden: bool = False


class Sampler:
    """Draws with a model's placement and vocabulary."""

    def __init__(self, place: Placement, vocab_size: int) -> None:
        self._place = place
        self._vocab_size = vocab_size

    def sample(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> list[Drawn]:
        """Draws for each row of logits [rows, vocab], which are overwritten, and appends each token
        to its row's state."""
        rows, stream = len(states), self._place.stream
        raw = logits
        if any([state.changes_logits for state in states]):
            raw = self._change(logits, states)
        tops = self._tops(raw, states)

        out = self._place.empty(20 * rows, dtype="uint8")  # read in one piece
        tokens = out.section(0, [rows], "int64")
        chosen, total = (out.section(at * rows, [rows], "float32") for at in (8, 12))
        ranks = out.section(16 * rows, [rows], "int32")
        kernels.sample(tokens, logits, *self._settings(states), stream)
        kernels.gather_columns(chosen, raw, tokens, stream)
        kernels.log_sum_exp(total, raw, stream)
        ranked = any([state.logprobs is not None for state in states])
        if ranked:
            kernels.rank_columns(ranks, raw, tokens, stream)

        read = self._place.numpy(out)
        ids = read[: 8 * rows].view(np.int64).tolist()
        of_ids, of_all = read[8 * rows : 16 * rows].view(np.float32).reshape(2, rows).tolist()
        of_rank = read[16 * rows :].view(np.int32).tolist() if ranked else [0] * rows
        drawn = []
        for row, (state, token, logit, whole, rank) in enumerate(
            zip(states, ids, of_ids, of_all, of_rank, strict=True)
        ):
            top = [(at, value - whole) for at, value in tops[row]] if row in tops else ()
            forbidden = token < 0 and math.isfinite(whole)
            forced = state.forced_token() if state.forced else None
            if forced is not None and math.isfinite(whole):
                token, logit, rank, forbidden = forced, whole, 1, False
            drawn.append(Drawn(token, logit - whole, top, rank, forbidden))
            if token >= 0:
                state.append(token)
        return drawn

    def together(self, *arrays: NDArray[Any]) -> list[kernels.Tensor]:
        """Vectors on the device, by one copy."""
        ends = list(accumulate((-(-array.nbytes // 8) * 8 for array in arrays), initial=0))
        host = np.zeros(ends[-1], np.uint8)
        for array, begin in zip(arrays, ends, strict=False):
            host[begin : begin + array.nbytes].view(array.dtype)[:] = array
        there = self._place.exact(host, np.uint8)
        return [
            there.section(begin, [len(array)], _NAMES[array.dtype])
            for array, begin in zip(arrays, ends, strict=False)
        ]

    def _rows(self, logits: kernels.Tensor, rows: NDArray[Any]) -> kernels.Tensor:
        copy = self._place.empty(len(rows), self._vocab_size)
        kernels.gather_rows(copy, logits, self._place.exact(rows, np.int64), self._place.stream)
        return copy

    def constrain(self, rows: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Biases, bans and penalties on rows [rows, vocab] of logits or log-probabilities: of each
        state as many as its history has."""
        histories = [state.history for state in states]
        self._bias(rows, kernels.token_biases(histories))
        self._penalize_sources(rows, states)
        self._penalize(rows, states, kernels.seen_tokens(histories))

    def _change(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> kernels.Tensor:
        """Biases, bans and penalties. Returns the logits as they were before."""
        histories = [state.history for state in states]
        biases, seen = kernels.token_biases(histories), kernels.seen_tokens(histories)
        sources = any(len(state.source_tokens) for state in states)
        if not len(biases[0]) and not len(seen[1]) and not sources:
            return logits
        raw = self._rows(logits, np.arange(len(states)))
        self._bias(logits, biases)
        self._penalize_sources(logits, states)
        self._penalize(logits, states, seen)
        return raw

    def _bias(
        self,
        logits: kernels.Tensor,
        biases: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]],
    ) -> None:
        rows, tokens, values = biases
        # A folder may name a stop token that its model's vocabulary has not.
        known = (tokens >= 0) & (tokens < self._vocab_size)
        where = self.together(rows[known], tokens[known], values[known])
        kernels.bias_logits(logits, *where, self._place.stream)

    def _penalize_sources(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """encoder_repetition_penalty, which is the reciprocal of one for repetition."""
        if not any(len(state.source_tokens) for state in states):
            return
        # An encoder may have a larger vocabulary than the model writes.
        known = [each.source_tokens[each.source_tokens < self._vocab_size] for each in states]
        of_rows = [
            tokens
            for state, tokens in zip(states, known, strict=True)
            for _ in range(state.history.rows)
        ]
        offsets = np.array([0, *accumulate(map(len, of_rows))], np.int32)
        tokens = np.concatenate(of_rows)
        reciprocals = 1 / _each_row(states, "encoder_repetition_penalty").astype(np.float64)
        none = np.zeros(len(of_rows), np.float32)
        counts = np.zeros(len(tokens), np.int32)
        arguments = self.together(
            offsets, tokens, counts, reciprocals.astype(np.float32), none, none
        )
        kernels.penalize(logits, *arguments, self._place.stream)

    def _penalize(
        self,
        logits: kernels.Tensor,
        states: Sequence[SamplingState],
        seen: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    ) -> None:
        if not len(seen[1]):
            return
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        arguments = self.together(*seen, *(_each_row(states, name) for name in penalties))
        kernels.penalize(logits, *arguments, self._place.stream)

    def _tops(
        self, raw: kernels.Tensor, states: Sequence[SamplingState]
    ) -> dict[int, list[tuple[int, float]]]:
        """The likeliest tokens with their logits, for the rows that ask."""
        wanted = {
            row: min(state.logprobs, self._vocab_size)
            for row, state in enumerate(states)
            if state.logprobs
        }
        if not wanted:
            return {}
        some = self._rows(raw, np.array([*wanted]))
        shape = len(wanted), max(wanted.values())
        values, tokens = self._place.empty(*shape), self._place.empty(*shape, dtype="int64")
        kernels.top_k(values, tokens, some, self._place.stream)
        pairs = zip(
            self._place.numpy(tokens).tolist(), self._place.numpy(values).tolist(), strict=True
        )
        return {
            row: list(zip(ids[:count], logits[:count], strict=True))
            for (row, count), (ids, logits) in zip(wanted.items(), pairs, strict=True)
        }

    def _settings(self, states: Sequence[SamplingState]) -> list[kernels.Tensor]:
        """The arguments of `kernels.sample` after the logits."""
        rows = len(states)
        counts = np.array([(state.seed, state.new_tokens) for state in states], np.int64)
        draws = np.frombuffer(b"".join([state.draw for state in states]), np.int32)
        columns = counts.T.tobytes() + draws.reshape(rows, -1).T.tobytes()
        there = self._place.exact(np.frombuffer(columns, np.uint8), np.uint8)
        seeds, steps = (there.section(at * rows, [rows], "int64") for at in (0, 8))
        return [
            *(there.section((16 + at) * rows, [rows], dtype) for dtype, at in _DRAW),
            seeds,
            steps,
        ]


def _each_row(states: Sequence[SamplingState], name: str) -> NDArray[np.float32]:
    values = np.array([getattr(state.parameters, name) for state in states], np.float32)
    return values.repeat([state.history.rows for state in states])
