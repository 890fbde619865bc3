"""Beam search, a step of all groups at once: logits become candidates, these the beams that run on,
and pages are copied where beams fork.

Where the model alone decides, but for biases and bans that are the same in every step, as in most
searches, what a step needs of each is kept from step to step (beam_cohort.py), and the device may
be ahead (beams_ahead.py). Where parameters have more to say, each step begins anew
(beam_choice.py). Which candidates run on, which are finished and when a
search is done: `kernels.BeamSearch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_choice import BeamChoice
from fusewire.engine.beam_cohort import BeamCohort
from fusewire.engine.beam_forks import BeamForks
from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.beams_ahead import BeamsAhead, FoundBeams
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.models.decoder_cache import DecoderCache
from fusewire.placement import Placement

# A search that a step took on and of which there is something to tell: that it is done, where its
# sequence has no rows, or tokens that are certain since, with their log-probabilities.
Advanced = tuple[GenerationSequence, BeamGroup, list[tuple[int, float]]]


class BeamGroups:
    """Takes searches on with a model's placement, vocabulary and cache."""

    def __init__(
        self,
        place: Placement,
        vocab_size: int,
        pages: KvCache,
        memory: DecoderCache,
        ahead: BeamsAhead,
    ) -> None:
        self._place = place
        self._processor = LogitsProcessor(place, vocab_size)
        self._choice = BeamChoice(place, vocab_size, self._processor)
        self._forks = BeamForks(pages, memory)
        self._pages = pages
        self._ahead = ahead
        self._cohort: BeamCohort | None = None  # of the last step

    def forget(self) -> None:
        """Frees what was kept from step to step: all searches have ended, or others go on."""
        if self._cohort is not None:
            self._cohort.candidates = None
        self._cohort = None

    def begin(
        self,
        logits: kernels.Tensor,
        first: int,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
        block_table: NDArray[np.int32],
    ) -> FoundBeams | None:
        """Begins a step of the groups, as `advance`; `finish` ends it. `first`: their first row of
        logits. `block_table`: that of the step's rows, of which theirs are the last. None where a
        step depends on more than the scores of the one before, or the groups differ in kind."""
        if self._cohort is None or not self._cohort.goes_on(sequences, groups):
            if len(kinds := {group.kind for group in groups}) > 1 or None in kinds:
                return None
            self.forget()
            self._forks.begin(sequences, groups)
            self._cohort = BeamCohort.of(sequences, groups, self._pages)
        cohort = self._cohort
        count = len(cohort.scores)
        own = self._choice.rows(logits, np.arange(first, first + count)) if first else logits
        candidates = cohort.next_candidates(self._place)
        own = self._processed(own, cohort)
        values = candidates.begin(own, cohort.scores, normalized=cohort.kind.normalized)
        rows = cohort.rows
        return FoundBeams(rows.sequences, cohort.groups, candidates, values, block_table[-count:])

    def forks_alone(self, found: FoundBeams) -> bool:
        """Whether the device can fork the searches of `found` that still run by itself."""
        cohort = self._cohort_of(found)
        return cohort is not None and cohort.forks_alone

    def begin_ahead(self, found: FoundBeams, reserved: Sequence[int]) -> FoundBeams | None:
        """Gives the device the step after the one that is `found`, for searches that still run,
        before the host reads it. `reserved`: pages to reserve for the fork of each after that step;
        empty: none. None where it cannot be begun: then `finish` what is found, and plan the
        step."""
        cohort = self._cohort_of(found)
        assert cohort is not None  # it forks alone
        fresh = None
        if cohort.needs_pages:
            fresh = self._give_pages(cohort, cohort.offsets)
        if reserved:
            self._pages.beams.reserve(cohort.taken, reserved)
            cohort.reserved = True
        found.prepared = True
        process = partial(self._processed, cohort=cohort)
        ahead = self._ahead.begin(found, cohort, fresh, process)
        found.forked = ahead is not None
        return ahead

    def finish(self, found: FoundBeams) -> list[Advanced]:
        """Waits for what is found, and gives each of the sequences that still run its next `rows`,
        none where its search is done. Returns what `advance` does."""
        values: NDArray[np.int32] = found.values.wait().numpy()
        cohort = self._cohort_of(found)
        if cohort is None:
            return []
        places = cohort.places_in(found.groups)
        if places is not None:
            values = np.ascontiguousarray(values[:, places])
        if cohort.forces:
            cohort.force(values)
        scores, log_probs = (values[row].view(np.float32) for row in (0, 1))
        kernels.advance_beams(cohort.searches, scores, log_probs, values[2], values[3])
        step = kernels.running_beams(cohort.searches)
        if not step.full:
            counts = np.diff(step.offsets)
            # The device has not forked as follows here: what it computed then is of no use.
            found.forked &= not ((counts != cohort.beams) & (counts != 0)).any()
        if not found.prepared and cohort.needs_pages:
            self._give_pages(cohort, step.offsets)
        self._forks.fork(
            step.offsets, step.parents, cohort.pages, cohort.taken, forked=found.forked
        )
        if found.prepared and not found.forked:
            self._pages.beams.take(cohort.taken, [0] * len(cohort.taken))
            cohort.reserved = False
        cohort.go_on(step)
        return _told(step, cohort.rows.sequences, cohort.groups)

    def _give_pages(self, cohort: BeamCohort, offsets: NDArray[np.int32]) -> NDArray[np.int32]:
        """Gives the next fork its pages, for the beams of `offsets`; nothing is reserved for it any
        more."""
        cohort.reserved = False
        return self._forks.give_pages(cohort.pages, offsets, cohort.taken)

    def resume(self, sequence: GenerationSequence, group: BeamGroup) -> None:
        """Resumes a preempted group, of which all that its beams had stored is stored again: gives
        its sequence the `rows` that it had."""
        self._forks.resume(sequence, group)

    def _processed(self, logits: kernels.Tensor, cohort: BeamCohort) -> kernels.Tensor:
        """What candidates are chosen by: the logits, or log-probabilities with biases."""
        if not cohort.kind.processed:
            return logits
        log_probs = self._choice.log_probs(logits)
        self._processor.bias(log_probs, cohort.biases(self._processor))
        return log_probs

    def _cohort_of(self, found: FoundBeams) -> BeamCohort | None:
        """The cohort of the searches of `found` that still run; None where none does."""
        cohort = self._cohort
        if cohort is not None and not cohort.all_run:
            cohort = self._cohort = cohort.rest()
        if cohort is not None and cohort.is_of(found.groups):
            return cohort
        still = [at for at, each in enumerate(found.sequences) if each.pages is not None]
        groups = [found.groups[at] for at in still]
        if groups and (cohort is None or cohort.groups != groups):
            sequences = [found.sequences[at] for at in still]
            cohort = self._cohort = BeamCohort.of(sequences, groups, self._pages)
        return cohort if groups else None

    def advance(
        self,
        logits: kernels.Tensor,
        first: int,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
    ) -> list[Advanced]:
        """Takes the groups a step on by the last rows of logits [rows, vocab], from `first` on, one
        for each beam, in order. Copies pages, and gives each of the sequences its next `rows`, none
        where its search is done. Returns the searches of which there is something to tell."""
        self.forget()
        ends = accumulate([group.rows for group in groups], initial=first)
        self._forks.begin(sequences, groups)
        begins = dict(zip(groups, ends, strict=False))
        for index in range(max(group.search.groups for group in groups)):
            some = [g for g in groups if index < g.search.groups and g.search.runs(index)]
            if some:
                self._choice.advance(index, logits, begins, some)
        step = kernels.running_beams([group.search for group in groups])
        parts = [part for group in groups for part in group.parts]
        counts = step.offsets[1:] - step.offsets[:-1]
        parents = step.parents + np.array([part.first for part in parts], np.int32).repeat(counts)
        of_groups = list(accumulate((group.search.groups for group in groups), initial=0))
        offsets = step.offsets[of_groups]
        pages = [group.pages for group in groups if group.pages is not None]
        taken = [sequence.pages for sequence in sequences if sequence.pages is not None]
        self._forks.give_pages(pages, offsets, taken)
        self._forks.fork(offsets, parents, pages, taken)
        table = kernels.beam_tables(pages, offsets)
        begin_of = np.array(offsets[:-1]).repeat([group.search.groups for group in groups])
        for part, begin, start, end in zip(
            parts, begin_of.tolist(), step.offsets.tolist(), step.offsets[1:].tolist(), strict=False
        ):
            own = slice(start, end)
            part.go_on(start - begin, step.parents[own], step.tokens[own])
        for at, (sequence, group) in enumerate(zip(sequences, groups, strict=True)):
            own = slice(*offsets[at : at + 2].tolist())
            before = 0 if sequence.rows is None else sequence.rows.stored
            if own.start == own.stop:
                sequence.rows = None
                self._pages.advance_beams(-before)
                continue
            tokens = step.tokens[own]
            assert sequence.pages is not None
            each = group.search.length - 1  # tokens that each beam has stored after the prompt
            stored = each * len(tokens)
            sequence.rows = BeamRows(tokens, sequence.pages.length + each, table[own], stored)
            self._pages.advance_beams(stored - before)
        return _told(step, sequences, groups)


def _told(
    step: kernels.BeamStep,
    sequences: Sequence[GenerationSequence],
    groups: Sequence[BeamGroup],
) -> list[Advanced]:
    if not step.told.size:
        return []
    tokens, log_probs = step.settled_tokens.tolist(), step.settled_log_probs.tolist()
    ends = step.settled_offsets.tolist()
    told = []
    for at in step.told.tolist():
        own = slice(ends[at], ends[at + 1])
        settled = list(zip(tokens[own], log_probs[own], strict=True))
        told.append((sequences[at], groups[at], settled))
    return told
