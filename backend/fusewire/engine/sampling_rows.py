"""The rows of a step's logits, by the sequences whose next tokens are drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from fusewire import kernels
from fusewire.engine.draw_memory import DrawMemory
from fusewire.engine.logits_processor import penalties_of
from fusewire.engine.sampling_state import SamplingState
from fusewire.placement import Placement

_ALONE = np.zeros(1, np.int32)  # the parent of one row


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
        self.penalties = penalties_of(states)
        self._memory: DrawMemory | None = None

    @property
    def draws_ahead(self) -> bool:
        """Whether all can be drawn for after their next tokens, which nobody has read."""
        return all([self.states[row].draws_ahead for row in self.read_first])

    def memory(self, place: Placement) -> DrawMemory:
        """Memory for the draws of these rows."""
        if self._memory is None:
            self._memory = DrawMemory(place, self.states)
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
