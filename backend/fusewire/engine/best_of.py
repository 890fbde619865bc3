"""`best_of`: more sequences are generated than answered; the likeliest are answered at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusewire.engine.continuation import Delta
from fusewire.errors import FusewireError


class BestOf:
    """Turns the events of a request's `sequences` into its answer, `n` of them.

    Where there are more sequences, nothing is answered until all have ended; then the likeliest
    are, by log-probability per token, as OpenAI's completions define it.
    """

    def __init__(self, n: int, sequences: int) -> None:
        self._n = n
        self._deltas: list[list[Delta]] = [[] for _ in range(sequences)]
        self._open = sequences

    def add(self, event: Delta | FusewireError) -> Sequence[Delta | FusewireError]:
        """Takes the next event; returns what is answered now."""
        if isinstance(event, FusewireError) or len(self._deltas) == self._n:
            return (event,)
        self._deltas[event.index].append(event)
        if event.finish_reason is not None:
            self._open -= 1
        if self._open:
            return ()
        ranked = sorted(self._deltas, key=lambda deltas: -_likelihood(deltas[-1]))
        answered = [
            replace(delta, index=index, prompt_logprobs=None)
            for index, deltas in enumerate(ranked[: self._n])
            for delta in deltas
        ]
        answered[0].prompt_logprobs = self._deltas[0][0].prompt_logprobs
        return answered


def _likelihood(last: Delta) -> float:
    return last.cumulative_logprob / max(1, last.num_output_tokens)
