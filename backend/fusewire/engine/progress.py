"""What an engine has computed, and when the work in hand is due.

A micro-batch, or a step of generation, may take milliseconds or minutes. A process that computes
and one that hangs are told apart by how long such work took before.
"""

from __future__ import annotations

import time

# Work may take this many times what work of its size took before: the machine may be busy with
# something else now.
_ALLOWANCE = 10
# Limit of the first work, which is the model's warm-up.
_FIRST_S = 600.0
# A hang is found within this time, however slow the model has been.
_MOST_S = 3600.0
# A time that was an exception is forgotten after some dozens of others.
_DECAY = 0.95


class Progress:
    """The progress of one engine. The thread that computes writes it, any thread reads it."""

    def __init__(self) -> None:
        self.tokens = 0  # computed since the start
        self.due: float | None = None  # by time.monotonic(); None where nothing is computed
        self._tokens = 0  # tokens of the work in hand
        self._began = 0.0
        self._longest_s: dict[int, float] = {}  # by the bits of the number of tokens

    def begin(self, tokens: int) -> None:
        """Work of `tokens` begins."""
        self._tokens = tokens
        self._began = time.monotonic()
        self.due = self._began + self.limit_s(tokens)

    def end(self, tokens: int) -> None:
        """The work in hand is computed; `tokens` of it are counted."""
        bits = self._tokens.bit_length()
        took = time.monotonic() - self._began
        self._longest_s[bits] = max(took, _DECAY * self._longest_s.get(bits, 0.0))
        self.tokens += tokens
        self.due = None

    def fail(self) -> None:
        """The work in hand will not be computed."""
        self.due = None

    def limit_s(self, tokens: int) -> float:
        """Seconds that work of `tokens` may take. Where there was never so much, it grows with
        their number from what less took: small work takes the longest per token."""
        if not self._longest_s:
            return _FIRST_S
        bits = tokens.bit_length()
        known = max((each for each in self._longest_s if each <= bits), default=None)
        if known is None:
            known = min(self._longest_s)
        growth = 2 ** max(0, bits - known)
        return min(_ALLOWANCE * growth * self._longest_s[known], _MOST_S)
