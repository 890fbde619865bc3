"""Logits become tokens, for all sequences of a step at once, each by its own parameters.

In the order of transformers' `generate`: biases and bans, penalties, then the draw (temperature,
top_k, top_p, min_p, typical_p). Log-probabilities are those of the logits as the model gave them,
as vLLM reports them; of a row that is `judged` those of what it is drawn from, at temperature 1. A
draw depends on the row, the seed and how many tokens the sequence has, on nothing else in the
batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from itertools import accumulate
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.draw_memory import DrawMemory
from fusewire.engine.sampling_state import SamplingState
from fusewire.placement import Placement

__all__ = ["Draws", "Sampler", "SamplingRows", "SamplingState"]

_NAMES = {np.dtype(name): name for name in ("float32", "int32", "int64")}
_ALONE = np.zeros(1, np.int32)  # the parent of one row


class Draws(NamedTuple):
    """The next token of each row; -1 where a row has no distribution: NaN or +inf among the logits,
    or `forbidden`, where the model has one of which the parameters leave nothing. A forced token
    has log-probability 0, as it is certain.
    `top_logprobs`: (token, log-probability), likeliest first, of the rows that ask. `ranks`: of the
    tokens, 1 for the likeliest; 0 unless a row asks for log-probabilities."""

    tokens: list[int]
    logprobs: list[float]
    top_logprobs: Mapping[int, Sequence[tuple[int, float]]]
    ranks: Sequence[int]
    forbidden: Collection[int]


class SamplingRows:
    """The rows of a step's logits by the states of their sequences: keeps what stays the same for
    as many steps as it is the same ones that take their tokens."""

    def __init__(self, states: Sequence[SamplingState]) -> None:
        self.states = states
        self.histories = [state.history for state in states]
        self.changes_logits = any([state.changes_logits for state in states])
        wished = [state.parameters.logprobs for state in states]
        self.ranked = any([count is not None for count in wished])
        self.tops = {row: count for row, count in enumerate(wished) if count}
        self.forced = [row for row, state in enumerate(states) if state.forced]
        self.masked = [row for row, state in enumerate(states) if state.mask is not None]
        self.judged = [row for row, state in enumerate(states) if state.judged]
        self.read_first = [row for row, each in enumerate(states) if not each.always_draws_ahead]
        self.penalties = _penalties(states)
        self._memory: DrawMemory | None = None

    @property
    def draws_ahead(self) -> bool:
        """Whether all can be drawn for after their next tokens, which nobody has read."""
        return all([self.states[row].draws_ahead for row in self.read_first])

    def memory(self, place: Placement) -> DrawMemory:
        """Memory for the draws of these rows."""
        if self._memory is None:
            self._memory = DrawMemory(place, self)
        return self._memory

    def followed_by(self, others: SamplingRows) -> SamplingRows:
        """The rows of both."""
        both, first = copy(self), len(self.states)
        both._memory = None
        both.states = [*self.states, *others.states]
        both.histories = self.histories + others.histories
        both.changes_logits |= others.changes_logits
        both.ranked |= others.ranked
        both.tops = self.tops | {first + row: count for row, count in others.tops.items()}
        both.forced = self.forced + [first + row for row in others.forced]
        both.masked = self.masked + [first + row for row in others.masked]
        both.judged = self.judged + [first + row for row in others.judged]
        both.read_first = self.read_first + [first + row for row in others.read_first]
        both.penalties = np.concatenate([self.penalties, others.penalties], axis=1)
        return both

    def append(self, tokens: list[int]) -> None:
        """Appends the generated tokens to the states; none where a row has none (-1)."""
        for state, token in zip(self.states, tokens, strict=True):
            if token >= 0:
                state.new_tokens += 1
        if self.changes_logits:
            kernels.append_tokens(self.histories, tokens)
        for row in self.masked:
            mask = self.states[row].mask
            if mask is not None and tokens[row] >= 0:
                mask.advance(_ALONE, np.array(tokens[row : row + 1], np.int64))


class PendingDraws:
    """Draws that the device was given; to be read once."""

    def __init__(
        self,
        tokens: kernels.Tensor,
        rows: SamplingRows,
        values: kernels.Readback,
        tops: Mapping[int, Sequence[tuple[int, float]]],
    ) -> None:
        self.tokens = tokens  # [rows] where the model is placed: -1 where a row has none
        self._rows = rows
        self._values = values
        self._tops = tops

    def read(self) -> Draws:
        """Waits for the draws, and appends each token to its row's state."""
        rows = self._rows
        count = len(rows.states)
        read: NDArray[np.uint8] = self._values.wait().numpy()
        ids = read[: 8 * count].view(np.int64).tolist()
        of_ids, of_all = read[8 * count : 16 * count].view(np.float32).reshape(2, count).tolist()
        of_rank = read[16 * count :].view(np.int32).tolist() if rows.ranked else [0] * count
        forbidden = set()
        if min(ids) < 0:
            # A judged row of which all is forbidden has the logits of nothing: -inf.
            found = {row for row in rows.judged if of_all[row] == -inf}
            found |= {row for row in range(count) if isfinite(of_all[row])}
            forbidden = {row for row in found if ids[row] < 0}
        for row in rows.forced:
            token = rows.states[row].forced_token()
            if token is not None and isfinite(of_all[row]):
                ids[row], of_ids[row] = token, of_all[row]
                forbidden.discard(row)
                of_rank[row] = 1 if rows.ranked else 0
        top_logprobs = {
            row: [(token, value - of_all[row]) for token, value in top]
            for row, top in self._tops.items()
        }
        logprobs = [logit - whole for logit, whole in zip(of_ids, of_all, strict=True)]
        rows.append(ids)
        return Draws(ids, logprobs, top_logprobs, of_rank, forbidden)


class Sampler:
    """Draws with a model's placement and vocabulary."""

    def __init__(self, place: Placement, vocab_size: int) -> None:
        self._place = place
        self._vocab_size = vocab_size

    def sample(self, logits: kernels.Tensor, rows: SamplingRows) -> Draws:
        """Draws for each row of logits [rows, vocab], which are overwritten, and appends each token
        to its row's state."""
        return self.begin(logits, rows).read()

    def begin(self, logits: kernels.Tensor, rows: SamplingRows, unread: int = 0) -> PendingDraws:
        """As `sample`, but returns before the draws are there. `unread`: how many draws for the
        same rows were begun before and are not read; rows that do not `draws_ahead` cannot have
        any."""
        stream = self._place.stream
        raw = self._change(logits, rows) if rows.changes_logits else logits
        tops = self._tops(raw, rows.tops)

        memory = rows.memory(self._place)
        memory.tell(np.array([state.new_tokens for state in rows.states], np.int64) + unread)
        kernels.sample(memory.tokens, logits, *memory.settings, stream)
        kernels.gather_columns(memory.chosen, raw, memory.tokens, stream)
        kernels.log_sum_exp(memory.total, raw, stream)
        if rows.ranked:
            kernels.rank_columns(memory.ranks, raw, memory.tokens, stream)
        return PendingDraws(memory.tokens, rows, self._place.readback(memory.out), tops)

    def some(self, tokens: kernels.Tensor, rows: Sequence[int]) -> kernels.Tensor:
        """The tokens [rows] of these rows alone; all stay on the device."""
        place, width = self._place, 2  # a token is two numbers, which are copied as they are
        found = place.empty(len(rows), width, dtype="float32")
        numbers = tokens.section(0, [tokens.shape[0], width], "float32")
        at = place.exact(np.array(rows, np.int64), np.int64)
        kernels.gather_rows(found, numbers, at, place.stream)
        return found.section(0, [len(rows)], "int64")

    def together(self, *arrays: NDArray[Any]) -> list[kernels.Tensor]:
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

    def _rows(self, logits: kernels.Tensor, rows: NDArray[Any]) -> kernels.Tensor:
        copy = self._place.empty(len(rows), self._vocab_size)
        kernels.gather_rows(copy, logits, self._place.exact(rows, np.int64), self._place.stream)
        return copy

    def constrain(self, rows: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Applies biases, bans and penalties to rows [rows, vocab] of logits or log-probabilities:
        each state has as many as its history."""
        histories = [state.history for state in states]
        self.bias(rows, self.biases(histories))
        self._penalize_sources(rows, states)
        self._penalize(rows, _penalties(states), kernels.seen_tokens(histories))
        self._mask(rows, states)

    def _change(self, logits: kernels.Tensor, rows: SamplingRows) -> kernels.Tensor:
        """Applies biases, bans and penalties. Returns the logits as they were before; judged rows
        as they are now."""
        biases = kernels.token_biases(rows.histories)
        seen = kernels.seen_tokens(rows.histories)
        sources = any([len(state.source_tokens) for state in rows.states])
        if not len(biases[0]) and not len(seen[1]) and not sources and not rows.masked:
            return logits
        raw = self._rows(logits, np.arange(len(rows.states)))
        self.bias(logits, self._known(biases))
        self._penalize_sources(logits, rows.states)
        self._penalize(logits, rows.penalties, seen)
        if rows.masked:
            self._mask(logits, rows.states)
        for row in rows.judged:
            begin = row * raw.nbytes // raw.shape[0]
            own = raw.section(begin, [1, self._vocab_size], raw.dtype)
            changed = self._place.exact(np.array([row]), np.int64)
            kernels.gather_rows(own, logits, changed, self._place.stream)
        return raw

    def _mask(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Forbids what masks forbid, and all text where timestamps are likelier together than any
        of them."""
        ends = list(accumulate([state.history.rows for state in states], initial=0))
        masks = [
            (state.mask, begin, end)
            for state, begin, end in zip(states, ends, ends[1:], strict=False)
            if state.mask is not None
        ]
        if not masks:
            return
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
            where = self.together(rows.astype(np.int32), tokens.astype(np.int32), values)
            self.bias(logits, where)

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
        return self.together(rows[known], tokens[known], values[known])

    def _penalize_sources(self, logits: kernels.Tensor, states: Sequence[SamplingState]) -> None:
        """Applies encoder_repetition_penalty, which is the reciprocal of one for repetition."""
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
        penalties: NDArray[np.float32],
        seen: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
    ) -> None:
        if not len(seen[1]):
            return
        arguments = self.together(*seen, *penalties)
        kernels.penalize(logits, *arguments, self._place.stream)

    def _tops(
        self, raw: kernels.Tensor, asked: Mapping[int, int]
    ) -> dict[int, list[tuple[int, float]]]:
        """The likeliest tokens with their logits: as many as each row that asks wants."""
        if not asked:
            return {}
        wanted = {row: min(count, self._vocab_size) for row, count in asked.items()}
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


def _penalties(states: Sequence[SamplingState]) -> NDArray[np.float32]:
    """Penalties for repetition, presence and frequency: [3, rows]."""
    of_each = np.frombuffer(b"".join([state.rules.penalties for state in states]), np.float32)
    return of_each.reshape(-1, 3).T.repeat([state.history.rows for state in states], axis=1)


def _each_row(states: Sequence[SamplingState], name: str) -> NDArray[np.float32]:
    values = np.array([getattr(state.parameters, name) for state in states], np.float32)
    return values.repeat([state.history.rows for state in states])
