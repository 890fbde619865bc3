"""Searches that take their steps together and in the same way, decided by the model alone and by
what is the same in every step. What a step needs of each is kept in arrays over all, which takes
Python little time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates, forced
from fusewire.engine.beam_rows import StepRows, offsets_of
from fusewire.engine.fork_memory import ForkMemory
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.engine.sequence_pages import SequencePages
from fusewire.placement import Placement

if TYPE_CHECKING:
    from fusewire.engine.beam_group import BeamGroup


class BeamCohort:
    """Groups in the order of a step's rows, until others join or some of them end."""

    def __init__(
        self,
        groups: Sequence[BeamGroup],
        taken: Sequence[SequencePages],
        rows: StepRows,
        pages: KvCache,
    ) -> None:
        """`taken`: the pages of the groups' sequences. `rows`: as the last step left them."""
        self.groups = groups
        # The groups that these are the rest of, and the places of these among them.
        self._before: tuple[Sequence[BeamGroup], Sequence[int]] | None = None
        self._cache = pages
        kind = groups[0].kind
        assert kind is not None  # all have the same
        self.kind = kind
        self._biases: tuple[NDArray[np.int32], list[kernels.Tensor]] | None = None  # with offsets
        self._sampling = [group.sampling for group in groups]
        self.searches = [group.search for group in groups]
        now = kernels.search_rows(self.searches)
        self.wanted = now.candidates
        self.candidates: BeamCandidates | None = None  # of the last step
        self._forced = [sampling for sampling in self._sampling if sampling.forced]
        self._until_forced = self._steps_until_forced()
        self.offsets, self.scores = now.offsets, now.scores  # of the rows
        self.taken = taken
        self.pages = [group.pages for group in groups if group.pages is not None]
        self.rows = rows
        self.beams = self.rows.beams
        self._stored = self.rows.stored
        self.reserved = any([each.reserved for each in self.taken])  # pages for the next fork
        self._all_run = True  # as long as nobody else has released pages
        self._releases = pages.releases
        self._full = offsets_of(self.beams)  # the offsets where none has fewer
        self._is_full = np.array_equal(self.offsets, self._full)
        self._forks: ForkMemory | None = None
        # The width of block tables, with the `places` of pages that it is for.
        self._width: tuple[NDArray[np.int32], int] | None = None
        self._ends = now.ends

    @classmethod
    def of(
        cls,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
        pages: KvCache,
    ) -> BeamCohort:
        taken = [each.pages for each in sequences if each.pages is not None]
        prompts = np.array([each.length for each in taken], np.int32)
        lengths = np.array([group.search.length for group in groups], np.int32)
        rows = StepRows(sequences, prompts, prompts + lengths - 1, pages.page_size)
        return cls(groups, taken, rows, pages)

    def rest(self) -> BeamCohort | None:
        """The cohort of the groups that still run; None where none does."""
        still = [at for at, each in enumerate(self.rows.sequences) if each.pages is not None]
        if not still:
            return None
        groups, taken = [self.groups[at] for at in still], [self.taken[at] for at in still]
        rest = BeamCohort(groups, taken, self.rows.rest(still), self._cache)
        rest._before = self.groups, still
        return rest

    def is_of(self, groups: Sequence[BeamGroup]) -> bool:
        """Whether this is known to be the cohort of those of a step's groups that still run."""
        return groups is self.groups or (self._before is not None and groups is self._before[0])

    def places_in(self, groups: Sequence[BeamGroup]) -> Sequence[int] | None:
        """The places of these groups among a step's; None: they are all of them, in order."""
        if groups is self.groups:
            return None
        if self._before is not None and groups is self._before[0]:
            return self._before[1]
        places = {group: at for at, group in enumerate(groups)}
        return [places[group] for group in self.groups]

    def goes_on(self, sequences: Sequence[GenerationSequence], groups: Sequence[BeamGroup]) -> bool:
        """Whether the next step is of these groups, all of them, with the rows that the last one
        left."""
        return self.groups == groups and self.rows.are_of(sequences)

    @property
    def forks_alone(self) -> bool:
        """Whether candidates alone say how the beams of all go on from the step whose candidates
        come next: none has fewer than it may have, and no token is forced."""
        return self._is_full and not self.forces

    @property
    def forces(self) -> bool:
        """Whether the token whose candidates come next is forced, for any of the searches."""
        return self._until_forced == 0

    def force(self, candidates: NDArray[np.int32]) -> None:
        """Replaces the candidates [4, searches, most] of searches whose next token is forced."""
        alike: defaultdict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for row, beams in enumerate(np.diff(self.offsets).tolist()):
            if (tokens := self._sampling[row].next_forced) is not None:
                alike[beams, tuple(tokens)].append(row)
        for (beams, one_of), rows in alike.items():
            scores = self.scores[self.offsets[rows][:, None] + np.arange(beams)]
            candidates[:, rows] = forced(candidates[:, rows], scores, one_of)

    @property
    def needs_pages(self) -> bool:
        """Whether the next fork may take pages: a page begins with it, or some are reserved for
        it."""
        return self.reserved or self.rows.begins(1)

    @property
    def all_run(self) -> bool:
        """Whether all groups still run; looked up again only when pages of some sequence were
        released."""
        if self._releases != self._cache.releases:
            self._releases = self._cache.releases
            self._all_run = None not in [each.pages for each in self.rows.sequences]
        return self._all_run

    def fork_memory(self, place: Placement, width: int) -> ForkMemory:
        """Memory for forks of all beams, in block tables of `width` pages."""
        if self._forks is None or self._forks.width != width:
            self._forks = ForkMemory(place, self._full, self._ends, width)
        return self._forks

    def table_width(self, width: Callable[[int], int]) -> int:
        """The width in pages of the next step's block table. `width`: the width that a model takes
        for a number of pages."""
        places = self.rows.places
        if self._width is None or self._width[0] is not places:
            self._width = places, width(int(places.max()) + 1)
        return self._width[1]

    def biases(self, processor: LogitsProcessor) -> list[kernels.Tensor]:
        """The biases of the rows, which are the same as long as each group has as many."""
        made = self._biases
        if made is None or (made[0] != self.offsets).any():
            for each, beams in zip(self._sampling, np.diff(self.offsets).tolist(), strict=True):
                each.spread(beams)
            there = processor.biases([each.history for each in self._sampling])
            made = self._biases = self.offsets, there
        return made[1]

    def next_candidates(self, place: Placement) -> BeamCandidates:
        """Memory for the candidates of the next step."""
        if self.candidates is None or not self.candidates.fits(self.offsets):
            self.candidates = BeamCandidates(place, self.offsets, self.wanted)
        return self.candidates

    def go_on(self, step: kernels.BeamStep) -> None:
        """Takes note of a step that every search has taken; one that is done has no rows from here
        on."""
        self.offsets, self.scores = step.offsets, step.scores
        self._is_full = step.full
        rows = self.rows
        rows.go_on(
            step.offsets, step.tokens, partial(kernels.beam_tables, self.pages, step.offsets)
        )
        before, self._stored = self._stored, rows.stored
        self._cache.advance_beams(self._stored - before)
        for sampling in self._forced:  # nobody needs the count of others
            sampling.new_tokens += 1
        self._until_forced -= 1
        if self._until_forced < 0:
            self._until_forced = self._steps_until_forced()
        for row in step.told.tolist():
            if not rows.counts[row]:
                rows.sequences[row].rows = None

    def _steps_until_forced(self) -> float:
        """Steps until a token of any search is forced; inf where none is from here on."""
        left = [at - each.new_tokens for each in self._forced for at in each.forced]
        return min([steps for steps in left if steps >= 0], default=inf)
