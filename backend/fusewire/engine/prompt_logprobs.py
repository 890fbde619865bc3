"""Log-probabilities of a prompt's tokens: the logits at each of its positions say how likely the
token that follows was.

No step holds the logits of all its tokens: they are computed in slices of a bounded size, of which
a few numbers each are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.placement import BYTES, Placement

# Log-probabilities of one request: spelled out as JSON each takes microseconds and 80 bytes.
MOST_ENTRIES = 1 << 18
_SLICE_BYTES = 64 << 20  # of logits at once


class TokenLogprob(NamedTuple):
    logprob: float
    rank: int  # 1: the likeliest of the vocabulary


class PromptLogprobs:
    """An entry for each token of a prompt: None for the first, which follows nothing, then the
    log-probabilities of the token and of the k likeliest in its place, by token id."""

    def __init__(self, token_ids: Sequence[int], k: int) -> None:
        """InvalidInput where prompt and k together ask for too much."""
        most = MOST_ENTRIES // len(token_ids) - 1
        if k > most:
            wanted = f"at most {most} with a prompt of {len(token_ids)} tokens"
            if most < 0:
                wanted = f"a prompt of at most {MOST_ENTRIES} tokens"
            raise InvalidInput("prompt_logprobs", k, wanted, "lower it or shorten the prompt")
        self.token_ids = np.array(token_ids[1:], np.int64)
        self.k = k
        self.valid = True  # no NaN or +inf among the logits so far
        count = len(self.token_ids)
        self._logprobs = np.empty(count, np.float32)
        self._ranks = np.empty(count, np.int32)
        self._top_ids = np.empty((count, k), np.int32)
        self._top_logprobs = np.empty((count, k), np.float32)

    def __len__(self) -> int:
        return len(self.token_ids) + 1

    def __iter__(self) -> Iterator[dict[int, TokenLogprob] | None]:
        yield None
        columns = self._logprobs, self._ranks, self._top_ids, self._top_logprobs
        for token, *arrays in zip(self.token_ids.tolist(), *columns, strict=True):
            logprob, rank, ids, logprobs = (array.tolist() for array in arrays)
            entry = {token: TokenLogprob(logprob, rank)}
            for place, (other, value) in enumerate(zip(ids, logprobs, strict=True), 1):
                entry[other] = TokenLogprob(value, place)
            yield entry

    def fill(self, begin: int, columns: Sequence[NDArray[np.generic]]) -> None:
        """Fills in what the logits at positions `begin` on say: log-probabilities and ranks of the
        tokens that follow, ids [n, k or more] and log-probabilities of the likeliest."""
        some = slice(begin, begin + len(columns[0]))
        logprobs, ranks, ids, tops = columns
        self._logprobs[some], self._ranks[some] = logprobs, ranks
        self.valid &= not np.isnan(logprobs).any()
        self._top_ids[some], self._top_logprobs[some] = ids[:, : self.k], tops[:, : self.k]


class PromptRows(NamedTuple):
    """Rows of a step whose logits are wanted: from `row` on those of `tokens` positions of a prompt
    from `begin` on."""

    of: PromptLogprobs
    begin: int
    tokens: int
    row: int


class PromptScorer:
    """Fills PromptLogprobs from the logits of a model with this placement and vocabulary."""

    def __init__(self, place: Placement, vocab_size: int) -> None:
        self._place = place
        self._vocab_size = vocab_size
        self._most_rows = max(1, _SLICE_BYTES // (vocab_size * BYTES[place.dtype]))

    def score(
        self,
        parts: Sequence[PromptRows],
        logits: Callable[[NDArray[np.int64]], kernels.Tensor],
    ) -> None:
        """Fills the entries of the `parts` of one step. `logits`: gives the logits [rows,
        vocabulary] of some of its rows."""
        rows = np.concatenate([np.arange(part.row, part.row + part.tokens) for part in parts])
        followers = np.concatenate(
            [part.of.token_ids[part.begin : part.begin + part.tokens] for part in parts]
        )
        k = min(max(part.of.k for part in parts), self._vocab_size)
        slices = [
            self._of_slice(logits(rows[some]), followers[some], k)
            for first in range(0, len(rows), self._most_rows)
            if (some := slice(first, first + self._most_rows))
        ]
        columns = [np.concatenate(column) for column in zip(*slices, strict=True)]
        end = 0
        for part in parts:
            begin, end = end, end + part.tokens
            part.of.fill(part.begin, [column[begin:end] for column in columns])

    def _of_slice(
        self, logits: kernels.Tensor, followers: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.generic], ...]:
        """Columns for `PromptLogprobs.fill`."""
        place, stream, count = self._place, self._place.stream, len(followers)
        tokens = place.exact(followers, np.int64)
        chosen, total = (place.empty(count, dtype="float32") for _ in range(2))
        ranks = place.empty(count, dtype="int32")
        kernels.gather_columns(chosen, logits, tokens, stream)
        kernels.log_sum_exp(total, logits, stream)
        kernels.rank_columns(ranks, logits, tokens, stream)
        values, ids = place.empty(count, k), place.empty(count, k, dtype="int64")
        if k:
            kernels.top_k(values, ids, logits, stream)
        whole = place.numpy(total)
        whole = np.where(np.isfinite(whole), whole, np.nan)
        tops = place.numpy(values) - whole[:, None]
        return place.numpy(chosen) - whole, place.numpy(ranks), place.numpy(ids), tops
