"""Searches that take their steps together and in the same way, of which nothing but the model
decides, and what is the same in every step: what a step needs of each, in arrays of all, so that it
takes Python little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates, forced
from fusewire.engine.beam_rows import StepRows
from fusewire.engine.fork_memory import ForkMemory
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.sampling import Sampler
from fusewire.engine.sequence_pages import SequencePages
from fusewire.placement import Placement

if TYPE_CHECKING:
    from fusewire.engine.beam_group import BeamGroup


class BeamCohort:
    """Groups in the order of a step's rows, until others join or some of them end."""

    def __init__(
        self,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
        pages: KvCache,
    ) -> None:
        self.groups = list(groups)
        self._cache = pages
        kind = groups[0].kind
        assert kind is not None  # and that of all
        self.kind = kind
        self._biases: tuple[NDArray[np.int32], list[kernels.Tensor]] | None = None  # of offsets
        self.parts = [group.parts[0] for group in groups]
        self.searches = [group.search for group in groups]
        self.wanted = np.array([search.candidates for search in self.searches], np.int32)
        self.candidates: BeamCandidates | None = None  # of the last step
        self._forced = [part.sampling for part in self.parts if part.sampling.forced]
        self._until_forced = self._steps_until_forced()
        scores = [part.scores for part in self.parts]
        self.offsets = np.cumsum([0, *map(len, scores)], dtype=np.int32)
        self.scores = np.concatenate(scores)  # of the rows
        self.taken: list[SequencePages] = []
        self.pages: list[kernels.BeamPages] = []
        for sequence, group in zip(sequences, groups, strict=True):
            assert sequence.pages is not None
            assert group.pages is not None
            self.taken.append(sequence.pages)
            self.pages.append(group.pages)
        self.prompts = np.array([each.length for each in self.taken], np.int32)
        stored = [search.length - 1 for search in self.searches]
        self.rows = StepRows(sequences, (self.prompts + stored).tolist())
        self.beams = self.rows.beams
        self.reserved = any([each.reserved for each in self.taken])  # pages for the next fork
        self._all_run = True  # as long as nobody else has released pages
        self._releases = pages.releases
        self._full = np.cumsum([0, *self.beams], dtype=np.int32)  # offsets where none has fewer
        self._forks: ForkMemory | None = None
        # Tokens that end a text, [searches, most of one], -1 in what is left.
        ends = [search.eos_token_ids for search in self.searches]
        self.ends = np.full((len(ends), max(map(len, ends))), -1, np.int32)
        for of_search, tokens in zip(self.ends, ends, strict=True):
            of_search[: len(tokens)] = tokens
        for row, part in enumerate(self.parts):
            part.join(self, row)

    def goes_on(self, sequences: Sequence[GenerationSequence], groups: Sequence[BeamGroup]) -> bool:
        """Whether these take the next step, all of them where the last one left them."""
        return self.groups == groups and self.rows.are_of(sequences)

    @property
    def forks_alone(self) -> bool:
        """Whether candidates alone say how the beams of all go on from the step whose candidates
        come next: none has fewer than it may have, and no token is forced."""
        return not self.forces and self.is_full(self.offsets)

    @property
    def forces(self) -> bool:
        """Whether the token whose candidates come next is forced, of any of them."""
        return self._until_forced == 0

    def force(self, candidates: NDArray[np.int32]) -> None:
        """Those [4, searches, most] of searches whose next token is forced are that alone."""
        alike: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for row, beams in enumerate(np.diff(self.offsets).tolist()):
            if (tokens := self.parts[row].forced) is not None:
                alike[beams, tuple(tokens)].append(row)
        for (beams, one_of), rows in alike.items():
            scores = self.scores[self.offsets[rows][:, None] + np.arange(beams)]
            candidates[:, rows] = forced(candidates[:, rows], scores, one_of)

    def is_full(self, offsets: NDArray[np.int32]) -> bool:
        """Whether each has as many beams as it may, by the offsets of their rows."""
        return not (offsets != self._full).any()

    @property
    def needs_pages(self) -> bool:
        """Whether their next fork may: a page begins with it, or some are reserved for it."""
        return self.reserved or not ((self.rows.positions + 1) % self._cache.page_size).all()

    @property
    def all_run(self) -> bool:
        """Looked up again only when somebody's pages were released."""
        if self._releases != self._cache.releases:
            self._releases = self._cache.releases
            self._all_run = None not in [each.pages for each in self.rows.sequences]
        return self._all_run

    def fork_memory(self, place: Placement, width: int) -> ForkMemory:
        """Of forks of all beams, in block tables so wide."""
        if self._forks is None or self._forks.width != width:
            self._forks = ForkMemory(place, self._full, self.ends, width)
        return self._forks

    def biases(self, sampler: Sampler) -> list[kernels.Tensor]:
        """Of the rows, which are the same as long as there are as many of each group."""
        made = self._biases
        if made is None or (made[0] != self.offsets).any():
            for part, beams in zip(self.parts, np.diff(self.offsets).tolist(), strict=True):
                part.sampling.spread(beams)
            there = sampler.biases([part.sampling.history for part in self.parts])
            made = self._biases = self.offsets, there
        return made[1]

    def next_candidates(self, place: Placement) -> BeamCandidates:
        """Memory for those of the next step."""
        if self.candidates is None or not self.candidates.fits(self.offsets):
            self.candidates = BeamCandidates(place, self.offsets, self.wanted)
        return self.candidates

    def go_on(self, step: kernels.BeamStep) -> None:
        """Every search has taken a step; one that is done has no rows from here on."""
        self.offsets, self.scores = step.offsets, step.scores
        rows, before = self.rows, int(self.rows.stored.sum())
        rows.go_on(
            step.offsets, step.tokens, partial(kernels.beam_tables, self.pages, step.offsets)
        )
        rows.stored = (rows.positions - self.prompts) * rows.counts
        self._cache.advance_beams(int(rows.stored.sum()) - before)
        for sampling in self._forced:  # of others nobody counts
            sampling.new_tokens += 1
        self._until_forced -= 1
        if self._until_forced < 0:
            self._until_forced = self._steps_until_forced()
        if not rows.counts.all():
            for row in np.flatnonzero(rows.counts == 0).tolist():
                rows.sequences[row].rows = None

    def _steps_until_forced(self) -> float:
        """Infinite where no token is from here on."""
        left = [at - each.new_tokens for each in self._forced for at in each.forced]
        return min([steps for steps in left if steps >= 0], default=inf)
