"""Logits become tokens, for all sequences of a step at once, each by its own parameters.

In the order of transformers' `generate`: what changes the logits (logits_processor.py), then the
draw (temperature, top_k, top_p, min_p, typical_p). Log-probabilities are those of the logits as the
model gave them, as vLLM reports them; of a row that is `judged` those of what it is drawn from, at
temperature 1. A draw depends on the row, the seed and how many tokens the sequence has, on nothing
else in the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.engine.sampling_rows import SamplingRows
from fusewire.float_types import widened
from fusewire.placement import Placement


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


class PendingTops:
    """The likeliest tokens with their logits, of rows that want some, which the device was given to
    find; to be read once."""

    def __init__(self, place: Placement, raw: kernels.Tensor, wanted: Mapping[int, int]) -> None:
        """`raw`: logits [rows, vocab] of the rows that are `wanted`, in their order; of each: how
        many tokens."""
        self._wanted = wanted
        shape = len(wanted), max(wanted.values())
        values, tokens = place.empty(*shape), place.empty(*shape, dtype="int64")
        kernels.top_k(values, tokens, raw, place.stream)
        self._dtype = values.dtype
        self._tokens, self._values = place.readback(tokens), place.readback(values)

    def read(self) -> dict[int, list[tuple[int, float]]]:
        tokens = self._tokens.wait().numpy().tolist()
        values = widened(self._values.wait().numpy(), self._dtype).tolist()
        return {
            row: list(zip(ids[:count], logits[:count], strict=True))
            for (row, count), ids, logits in zip(self._wanted.items(), tokens, values, strict=True)
        }


class PendingDraws:
    """Draws that the device was given; to be read once."""

    def __init__(
        self,
        tokens: kernels.Tensor,
        rows: SamplingRows,
        values: kernels.Readback,
        tops: PendingTops | None,
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
            for row, top in (self._tops.read() if self._tops else {}).items()
        }
        logprobs = [logit - whole for logit, whole in zip(of_ids, of_all, strict=True)]
        rows.append(ids)
        return Draws(ids, logprobs, top_logprobs, of_rank, forbidden)


class Sampler:
    """Draws with a model's placement and vocabulary."""

    def __init__(self, place: Placement, vocab_size: int) -> None:
        self._place = place
        self._vocab_size = vocab_size
        self._processor = LogitsProcessor(place, vocab_size)

    def sample(self, logits: kernels.Tensor, rows: SamplingRows) -> Draws:
        """Draws for each row of logits [rows, vocab], which are overwritten, and appends each token
        to its row's state."""
        return self.begin(logits, rows).read()

    def begin(
        self, logits: kernels.Tensor, rows: SamplingRows, unread: NDArray[np.int64] | int = 0
    ) -> PendingDraws:
        """As `sample`, but returns before the draws are there. `unread`: how many draws for the
        same rows, or for each of them, were begun before and are not read; rows that do not
        `draws_ahead` cannot have any."""
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

    def _rows(self, logits: kernels.Tensor, rows: NDArray[Any]) -> kernels.Tensor:
        copy = self._place.empty(len(rows), self._vocab_size)
        kernels.gather_rows(copy, logits, self._place.exact(rows, np.int64), self._place.stream)
        return copy

    def _change(self, logits: kernels.Tensor, rows: SamplingRows) -> kernels.Tensor:
        """Applies biases, bans, penalties and masks. Returns the logits as they were before; judged
        rows as they are now."""
        changes = self._processor.changes(rows.states, rows.histories, masked=bool(rows.masked))
        if changes is None:
            return logits
        raw = self._rows(logits, np.arange(len(rows.states)))
        self._processor.apply(logits, changes, rows.penalties)
        for row in rows.judged:
            begin = row * raw.nbytes // raw.shape[0]
            own = raw.section(begin, [1, self._vocab_size], raw.dtype)
            changed = self._place.exact(np.array([row]), np.int64)
            kernels.gather_rows(own, logits, changed, self._place.stream)
        return raw

    def _tops(self, raw: kernels.Tensor, asked: Mapping[int, int]) -> PendingTops | None:
        if not asked:
            return None
        wanted = {row: min(count, self._vocab_size) for row, count in asked.items()}
        return PendingTops(self._place, self._rows(raw, np.array([*wanted])), wanted)
