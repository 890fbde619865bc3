"""The beams of one request, between steps: scores, histories, and which pages they have.

What they search by is `kernels.BeamSearch`; diverse groups are parts of it, each with beams and a
history of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.sampling_state import SamplingState


class StepKind(NamedTuple):
    """How logits become candidates."""

    processed: bool  # log-probabilities are changed
    normalized: bool  # and are then taken as they are


class BeamPart:
    """Beams that search by themselves: a diverse group, or all of a request without these."""

    def __init__(self, search: kernels.BeamSearch, index: int, sampling: SamplingState) -> None:
        self.sampling = sampling  # with the histories of all its beams
        self.first = 0  # its first row among the request's
        self._search, self._index = search, index

    @property
    def scores(self) -> NDArray[np.float32]:
        """Scores of the running beams; before the first step that of the prompt."""
        scores: NDArray[np.float32] = self._search.scores(self._index)
        return scores

    def go_on(self, first: int, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        """Notes the beams that run on, if any, and their first row among the request's."""
        self.first = first
        if len(tokens):
            self.sampling.advance(parents, tokens)

    @property
    def forced(self) -> Sequence[int] | None:
        """The tokens of which one comes next, where it is forced; else None."""
        return self.sampling.next_forced


class BeamGroup:
    """The beams of one request."""

    def __init__(
        self,
        search: kernels.BeamSearch,
        sampling: SamplingState,
        *,
        renormalizes: bool = False,
        diversity_penalty: float = 0.0,
    ) -> None:
        """`sampling`: what changes log-probabilities, before the first token; `renormalizes`:
        whether they are normalised again after that. `diversity_penalty`: penalty of a token for
        each time that groups before chose it in the same step (Vijayakumar et al., 2018)."""
        self.search = search
        self.sampling = sampling
        self.renormalizes = renormalizes
        self.diversity_penalty = diversity_penalty
        self.pages: kernels.BeamPages | None = None  # once the prompt is stored
        diverse = search.groups > 1
        if diverse:
            sampling.changes_logits = True
        # Whether anything but the model decides about tokens.
        self.changes_logits = changes = sampling.changes_logits
        # The kind of its steps, where one depends on the scores alone of the one before: the model
        # alone decides, but for tokens that are forced and changes that are the same in every step.
        self.kind: StepKind | None = None
        if sampling.fixed and not diverse:
            self.kind = StepKind(changes, changes and not renormalizes)

    @cached_property
    def parts(self) -> list[BeamPart]:
        """The parts that search by themselves. Made when they are asked for: where steps are kept
        (beam_cohort) they do not need them."""
        search, sampling = self.search, self.sampling
        if search.groups == 1:
            return [BeamPart(search, 0, sampling)]
        return [BeamPart(search, index, sampling.fork(0)) for index in range(search.groups)]

    def penalize(self, index: int) -> None:
        """Penalises for part `index`, which is about to take its step, what the parts before
        chose."""
        if index:
            chosen = self.search.chosen_before(index)
            self.parts[index].sampling.history.penalize_once(chosen, self.diversity_penalty)

    def histories(self) -> list[list[int]]:
        """The tokens that each running beam has generated."""
        running = sum(len(part.scores) for part in self.parts)
        return [self.search.history(beam).tolist() for beam in range(running)]

    @property
    def rows(self) -> int:
        """Rows of the coming step: before the first one, the prompt's; then one for each beam."""
        return sum(len(part.scores) for part in self.parts) if self.pages else 1
