"""What one sequence brings to the choice of its next token: its rules, and what is known of its
tokens so far (`kernels.TokenHistories`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from random import Random

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.token_masks import TokenMask

_NONE = np.zeros(0, np.int32)


class SamplingState:
    """One sequence's part of a batch of draws, or that of the beams of a search."""

    def __init__(
        self,
        rules: SamplingRules,
        prompt_ids: Sequence[int],
        seed: int = 0,
        forced: Mapping[int, Sequence[int]] | None = None,
        source_ids: Sequence[int] = (),
        mask: TokenMask | None = None,
        *,
        judged: bool = False,
    ) -> None:
        """`seed`: any integer, of which 64 bits count.
        `forced`: new tokens that no logits decide, by how many there are before them; one of each
        list, in ascending order, as likely as the others.
        `source_ids`: what the encoder of an encoder-decoder model reads. `mask`: what else is
        forbidden, after all of that. `judged`: its log-probabilities are those after biases, bans
        and penalties."""
        self.rules, self.parameters = rules, rules.parameters
        self.seed = _in_64_bits(seed)
        self.new_tokens = 0
        self.forced = forced or {}
        self.mask = mask
        self.judged = judged
        # Tokens of the source that encoder_repetition_penalty concerns, each once.
        self.source_tokens = _NONE
        if self.parameters.encoder_repetition_penalty != 1 and len(source_ids):
            self.source_tokens = np.unique(np.array(source_ids, np.int32))
        likes = len(self.source_tokens) > 0
        # As the rules have it, with what the sequence adds.
        self.looks_back = rules.looks_back or mask is not None
        self.changes_logits = rules.changes_logits or likes or mask is not None
        self.fixed = rules.fixed and not likes and mask is None
        self._read_first = rules.read_first(self.forced)
        self.history = rules.history(prompt_ids, source_ids, self.forced)

    def fork(self, seed: int) -> SamplingState:
        """Another sequence that goes on from the same tokens."""
        fork = copy(self)
        fork.seed = _in_64_bits(seed)
        fork.history = self.history.fork()
        fork.mask = None if self.mask is None else self.mask.fork()
        return fork

    def advance(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        """Beams go on: row i of the history becomes row parents[i] with tokens[i] after it."""
        self.new_tokens += 1
        if self.changes_logits:
            self.history.advance(parents, tokens)
        if self.mask is not None:
            self.mask.advance(parents, tokens)

    def spread(self, beams: int) -> None:
        """Gives biases that are `fixed` a row for each of `beams` beams, whichever these are."""
        if self.history.rows != beams:
            self.history.advance(np.zeros(beams, np.int32), np.zeros(beams, np.int64))

    @property
    def always_draws_ahead(self) -> bool:
        """Whether `draws_ahead` at every place."""
        return not (self.looks_back or self._read_first)

    @property
    def draws_ahead(self) -> bool:
        """Whether the draw after the next token, which nobody has read, asks no more of the tokens
        before it than how many there are."""
        return not self.looks_back and self.new_tokens not in self._read_first

    @property
    def next_forced(self) -> Sequence[int] | None:
        """The tokens of which one comes next, where no logits decide it; else None."""
        return self.forced.get(self.new_tokens)

    def forced_token(self) -> int | None:
        """The next token, where no logits decide it; else None."""
        tokens = self.next_forced
        if tokens is None:
            return None
        if self.parameters.greedy or len(tokens) == 1:
            return tokens[0]
        return Random(f"{self.seed} {self.new_tokens}").choice(tokens)


def _in_64_bits(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
