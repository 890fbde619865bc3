"""`best_of`: more continuations are generated than answered; the likeliest are told at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusewire.engine.continuation import Delta
from fusewire.errors import FusewireError


class BestOf:
    """A listener that keeps what it is told until all have ended, then tells `n` of them.

    The likeliest: by log-probability a token, as OpenAI's completions define it.
    """

    def __init__(self, n: int, sequences: int, tell: Callable[[Delta | FusewireError], None]):
        self._n = n
        self._tell = tell
        self._deltas: list[list[Delta]] = [[] for _ in range(sequences)]
        self._open = sequences

    def __call__(self, told: Delta | FusewireError) -> None:
        if isinstance(told, FusewireError):
            self._tell(told)
            return
        self._deltas[told.index].append(told)
        if told.finish_reason is not None:
            self._open -= 1
        if not self._open:
            ranked = sorted(self._deltas, key=lambda deltas: -_likelihood(deltas[-1]))
            for index, deltas in enumerate(ranked[: self._n]):
                for delta in deltas:
                    self._tell(replace(delta, index=index))


def _likelihood(last: Delta) -> float:
    return last.cumulative_logprob / max(1, last.num_output_tokens)
