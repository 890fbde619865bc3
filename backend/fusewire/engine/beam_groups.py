"""Beam search, a step of all groups at once: logits become candidates, these the beams that run on,
and pages are copied where beams fork.

As transformers' `generate` has it: log-probabilities first, then biases, bans and penalties, which
are normalised again for `renormalize_logits` alone; a forced token has log-probability 0. Which
candidates run on, which are finished and when a search is done: `kernels.BeamSearch`; what their
pages are: `kernels.BeamPages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates
from fusewire.engine.beam_cohort import BeamCohort
from fusewire.engine.beam_pasts import pasts_of
from fusewire.engine.beams_ahead import BeamsAhead, FoundBeams
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence
from fusewire.engine.kv_cache import KvCache, SequencePages
from fusewire.engine.sampling import Sampler, SamplingState
from fusewire.models.decoder_cache import DecoderCache
from fusewire.placement import Placement

__all__ = ["MOST_CANDIDATES", "BeamGroup", "BeamGroups"]

# Of a group and step: `kernels.beam_candidates` sorts no more.
MOST_CANDIDATES = 2048


class BeamPart:
    """Beams that search by themselves: a diverse group, or all of a request without these."""

    def __init__(self, sampling: SamplingState) -> None:
        self.sampling = sampling  # with the histories of all of them
        self.first = 0  # of their rows among the request's
        self._scores = np.zeros(1, np.float32)
        self._cohort: tuple[BeamCohort, int] | None = None

    @property
    def scores(self) -> NDArray[np.float32]:
        """Of the beams; first of the prompt."""
        if self._cohort is None:
            return self._scores
        cohort, row = self._cohort
        return cohort.scores[slice(*cohort.offsets[row : row + 2].tolist())]

    def join(self, cohort: BeamCohort, row: int) -> None:
        """The cohort has the scores from here on."""
        self._cohort = cohort, row

    def go_on(
        self,
        first: int,
        scores: NDArray[np.float32],
        parents: NDArray[np.int32],
        tokens: NDArray[np.int64],
    ) -> None:
        """The beams that run on, if any."""
        self.first, self._scores, self._cohort = first, scores, None
        if len(tokens):
            self.sampling.advance(parents, tokens)


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
        whether they are normalised again after that. `diversity_penalty`: of a token for each time
        that groups before chose it in the same step (Vijayakumar et al., 2018)."""
        self.search = search
        self.renormalizes = renormalizes
        self.diversity_penalty = diversity_penalty
        self.pages: kernels.BeamPages | None = None  # once the prompt is stored
        self.parts = [BeamPart(sampling)]
        if search.groups > 1:
            sampling.changes_logits = True
            self.parts = [BeamPart(sampling.fork(0)) for _ in range(search.groups)]

    def penalize(self, index: int) -> None:
        """A part is about to take its step: what those before it chose costs it."""
        if index:
            chosen = self.search.chosen_before(index)
            self.parts[index].sampling.history.penalize_once(chosen, self.diversity_penalty)

    def histories(self) -> list[list[int]]:
        """The tokens that each running beam has generated."""
        running = sum(len(part.scores) for part in self.parts)
        return [self.search.history(beam).tolist() for beam in range(running)]

    @property
    def plain(self) -> bool:
        """Whether the model alone decides, but for tokens that are forced, and nothing is reused
        of a step but its scores."""
        return self.search.groups == 1 and not self.changes_logits

    @property
    def changes_logits(self) -> bool:
        """Whether anything does but the model."""
        return self.parts[0].sampling.changes_logits

    @property
    def rows(self) -> int:
        """Of the coming step: one, the prompt's, before the first."""
        return sum(len(part.scores) for part in self.parts) if self.pages else 1


class BeamGroups:
    """Searches with a model's placement, vocabulary and cache."""

    def __init__(
        self,
        place: Placement,
        vocab_size: int,
        sampler: Sampler,
        pages: KvCache,
        memory: DecoderCache,
        ahead: BeamsAhead,
    ) -> None:
        self._place = place
        self._vocab_size = vocab_size
        self._sampler = sampler
        self._pages = pages
        self._memory = memory
        self._ahead = ahead
        self._cohort: BeamCohort | None = None  # that took the last step

    def forget(self) -> None:
        """What was kept from step to step is free: all searches have ended, or others go on."""
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
        """Begins to take the groups a step on, as `advance`, which `finish` ends; `block_table`: of
        the step's rows, of which theirs are the last. None where not the model alone decides."""
        if self._cohort is None or not self._cohort.goes_on(sequences, groups):
            if not all([group.plain for group in groups]):
                return None
            self.forget()
            self._begin(sequences, groups)
            self._cohort = BeamCohort(sequences, groups)
        cohort = self._cohort
        count = len(cohort.scores)
        rows = self._rows(logits, np.arange(first, first + count)) if first else logits
        candidates = cohort.next_candidates(self._place)
        values = candidates.begin(rows, cohort.scores)
        return FoundBeams(sequences, groups, candidates, values, block_table[-count:])

    def forks_alone(self, found: FoundBeams) -> bool:
        """Whether the device knows how the searches go on from what is `found`, those that still
        run."""
        return bool(self._still(found)) and self._cohort_of(found).forks_alone

    def begin_ahead(self, found: FoundBeams, reserved: Sequence[int]) -> FoundBeams | None:
        """Gives the device the step behind the one that is `found`, of those that still run, before
        anybody reads that; `reserved`: pages for each one's fork behind it. None where it cannot
        be: then `finish` what is found, and plan the step."""
        cohort = self._cohort_of(found)
        fresh = self._give_pages(cohort.pages, cohort.offsets, cohort.taken)
        self._pages.reserve_for_beams(cohort.taken, reserved)
        found.prepared = True
        ahead = self._ahead.begin(found, cohort, fresh)
        found.forked = ahead is not None
        return ahead

    def finish(self, found: FoundBeams) -> dict[BeamGroup, list[tuple[int, float]]]:
        """Waits for what is found, and gives each of the sequences that still run its next `rows`,
        none where its search is done. As `advance`."""
        values: NDArray[np.int32] = found.values.wait().numpy()
        still = self._still(found)
        if not still:
            return {}
        cohort = self._cohort_of(found)
        if len(still) < len(found.groups):
            values = np.ascontiguousarray(values[:, still])
        for row in cohort.forced:
            sampling = cohort.parts[row].sampling
            if sampling.new_tokens in sampling.forced:
                _force(cohort.parts[row], values[:, row])
        scores, log_probs = (values[row].view(np.float32) for row in (0, 1))
        kernels.advance_beams(cohort.searches, scores, log_probs, values[2], values[3])
        step = kernels.running_beams(cohort.searches)
        counts = np.diff(step.offsets)
        # Elsewhere the device has not forked as follows here: what it computed then is of no use.
        found.forked &= not ((counts != cohort.beams) & (counts != 0)).any()
        table = self._fork(
            step.offsets,
            step.parents,
            cohort.pages,
            cohort.taken,
            prepared=found.prepared,
            forked=found.forked,
        )
        if found.prepared and not found.forked:
            self._pages.take_for_beams(cohort.taken, [0] * len(cohort.taken))
        cohort.go_on(step, table)
        self._pages.advance_all_beams(cohort.taken, cohort.stored)
        return _settled(step, cohort.groups)

    def _still(self, found: FoundBeams) -> list[int]:
        """Which of the sequences run."""
        return [at for at, each in enumerate(found.sequences) if each.pages is not None]

    def _cohort_of(self, found: FoundBeams) -> BeamCohort:
        """Those of them that still run, one or more."""
        still = self._still(found)
        groups = [found.groups[at] for at in still]
        if self._cohort is None or self._cohort.groups != groups:
            self._cohort = BeamCohort([found.sequences[at] for at in still], groups)
        return self._cohort

    def advance(
        self,
        logits: kernels.Tensor,
        first: int,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
    ) -> dict[BeamGroup, list[tuple[int, float]]]:
        """Takes the groups a step on by the rows of logits [rows, vocab] from `first` on, one for
        each beam, in order; the last are theirs. Copies pages, and gives each of the sequences its
        next `rows`, none where its search is done. Returns the tokens, with log-probabilities,
        that are certain from now on, of the groups that have any."""
        self.forget()
        ends = accumulate([group.rows for group in groups], initial=first)
        self._begin(sequences, groups)
        begins = dict(zip(groups, ends, strict=False))
        for index in range(max(group.search.groups for group in groups)):
            some = [g for g in groups if index < g.search.groups and g.search.runs(index)]
            if some:
                self._take_step(index, logits, begins, some)
        step = kernels.running_beams([group.search for group in groups])
        parts = [part for group in groups for part in group.parts]
        counts = step.offsets[1:] - step.offsets[:-1]
        parents = step.parents + np.array([part.first for part in parts], np.int32).repeat(counts)
        of_groups = list(accumulate((group.search.groups for group in groups), initial=0))
        offsets = step.offsets[of_groups]
        pages = [group.pages for group in groups if group.pages is not None]
        taken = [sequence.pages for sequence in sequences if sequence.pages is not None]
        forks = self._fork(offsets, parents, pages, taken)
        begin_of = np.array(offsets[:-1]).repeat([group.search.groups for group in groups])
        for part, begin, start, end in zip(
            parts, begin_of.tolist(), step.offsets.tolist(), step.offsets[1:].tolist(), strict=False
        ):
            own = slice(start, end)
            part.go_on(start - begin, step.scores[own], step.parents[own], step.tokens[own])
        for at, (sequence, group) in enumerate(zip(sequences, groups, strict=True)):
            own = slice(*offsets[at : at + 2].tolist())
            if own.start == own.stop:
                sequence.rows = None
                continue
            tokens = step.tokens[own]
            assert sequence.pages is not None
            stored = group.search.length - 1  # by each beam, behind the prompt
            sequence.rows = BeamRows(tokens, sequence.pages.length + stored, forks[own])
            self._pages.advance_beams(sequence.pages, stored * len(tokens))
        return _settled(step, groups)

    def _begin(self, sequences: Sequence[GenerationSequence], groups: Sequence[BeamGroup]) -> None:
        """Those whose prompt was stored in this step get the pages of their beams."""
        for sequence, group in zip(sequences, groups, strict=True):
            if group.pages is None:
                assert sequence.pages is not None
                group.pages = kernels.BeamPages(
                    beams=sequence.beams,
                    page_size=self._pages.page_size,
                    tables=[self._pages.begin_beams(sequence.pages)],
                    length=sequence.pages.length,
                )

    def resume(self, sequence: GenerationSequence, group: BeamGroup) -> None:
        """Of a group that was preempted all that its beams had stored is stored again: gives it the
        `rows` that it had."""
        assert sequence.pages is not None
        histories = group.histories()
        _, of_beams = pasts_of(sequence.token_ids, histories)
        tables = [past.pages.table.tolist() for past in sequence.returning if past.pages]
        position = len(sequence.returning[0].token_ids)
        group.pages = kernels.BeamPages(
            beams=sequence.beams,
            page_size=self._pages.page_size,
            tables=tables,
            length=position,
        )
        offsets = np.array([0, len(of_beams)], np.int32)
        table = self._fork(offsets, np.array(of_beams, np.int32), [group.pages], [sequence.pages])
        tokens = np.array([history[-1] for history in histories], np.int64)
        sequence.rows, sequence.returning = BeamRows(tokens, position, table), []
        stored = (position - sequence.pages.length) * len(tokens)
        self._pages.advance_beams(sequence.pages, stored)

    def _take_step(
        self,
        index: int,
        logits: kernels.Tensor,
        begins: Mapping[BeamGroup, int],
        groups: Sequence[BeamGroup],
    ) -> None:
        """Chooses for part `index` of the groups, whose rows of logits begin at `begins`."""
        types: dict[tuple[bool, bool], list[BeamGroup]] = {}
        for group in groups:
            processed = group.parts[index].sampling.changes_logits
            types.setdefault((processed, processed and not group.renormalizes), []).append(group)
        found = {}
        for (processed, normalized), some in types.items():
            parts = [group.parts[index] for group in some]
            firsts = [begins[group] + group.parts[index].first for group in some]
            rows = [
                np.arange(at, at + len(part.scores)) for at, part in zip(firsts, parts, strict=True)
            ]
            part_logits = self._rows(logits, np.concatenate(rows))
            if processed:
                for group in some:
                    group.penalize(index)
                part_logits = self._processed(part_logits, parts)
            of_parts = [part.scores for part in parts]
            given = BeamCandidates(
                self._place,
                np.cumsum([0, *map(len, of_parts)], dtype=np.int32),
                np.array([group.search.candidates for group in some], np.int32),
            )
            scores = np.concatenate(of_parts)
            candidates = given.find(part_logits, scores, normalized=normalized)
            found.update({each: candidates[:, row] for row, each in enumerate(some)})
        most = max(each.shape[1] for each in found.values())
        together = np.full((4, len(groups), most), -1, np.int32)
        together[:2].view(np.float32)[:] = -np.inf
        for row, group in enumerate(groups):
            together[:, row, : found[group].shape[1]] = found[group]
            _force(group.parts[index], together[:, row])
        scores, log_probs = (together[row].view(np.float32) for row in (0, 1))
        searches = [group.search for group in groups]
        kernels.advance_beams(searches, scores, log_probs, together[2], together[3], index)

    def _rows(self, logits: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        if len(rows) == logits.shape[0]:  # in order, unless groups of both types meet
            return logits
        part = kernels.empty([len(rows), self._vocab_size], logits.dtype, stream=self._place.stream)
        where = self._place.exact(rows, np.int64)
        kernels.gather_rows(part, logits, where, self._place.stream)
        return part

    def _processed(self, logits: kernels.Tensor, parts: Sequence[BeamPart]) -> kernels.Tensor:
        """Log-probabilities, float32, with biases, bans and penalties."""
        log_probs = self._place.empty(*logits.shape, dtype="float32")
        kernels.log_softmax(log_probs, logits, self._place.stream)
        self._sampler.constrain(log_probs, [part.sampling for part in parts])
        return log_probs

    def _give_pages(
        self,
        pages: list[kernels.BeamPages],
        offsets: NDArray[np.int32],
        taken: Sequence[SequencePages],
    ) -> NDArray[np.int32]:
        """Those that the next fork writes to; returns what `kernels.give_pages` does."""
        wanted = kernels.wanted_pages(pages, offsets)
        fresh = self._pages.take_for_beams(taken, wanted.tolist())
        return kernels.give_pages(pages, offsets, np.array(fresh, np.int32))

    def _fork(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        pages: list[kernels.BeamPages],
        taken: Sequence[SequencePages],
        *,
        prepared: bool = False,
        forked: bool = False,
    ) -> NDArray[np.int32]:
        """Beams get their parents' pages and room for one position more: their block table.
        `prepared`: they have pages to write to; `forked`: what they copy is copied."""
        if not prepared:
            self._give_pages(pages, offsets, taken)
        forks = kernels.fork_pages(pages, offsets, parents)
        if not forked:
            # At once: a group may end before the next step, and then its pages are others'.
            self._memory.copy_pages(forks.sources, forks.destinations)
        released, ends = forks.released.tolist(), forks.released_offsets.tolist()
        for each, begin, end in zip(taken, ends, ends[1:], strict=False) if released else ():
            if begin < end:
                own = each.beam_pages.intersection(released[begin:end])
                self._pages.release_of_beams(each, sorted(own))
        table: NDArray[np.int32] = forks.block_table
        return table


def _settled(
    step: kernels.BeamStep, groups: Sequence[BeamGroup]
) -> dict[BeamGroup, list[tuple[int, float]]]:
    if not step.settled_tokens.size:
        return {}
    news = zip(step.settled_tokens.tolist(), step.settled_log_probs.tolist(), strict=True)
    counts = np.diff(step.settled_offsets)
    return {groups[at]: list(islice(news, counts[at])) for at in counts.nonzero()[0]}


def _force(part: BeamPart, candidates: NDArray[np.int32]) -> None:
    """Where the next token is forced, the candidates [4, most] are that of each beam, or those
    of a list; unless the logits were not finite."""
    state = part.sampling
    tokens = state.forced.get(state.new_tokens)
    scores = candidates[0].view(np.float32)
    if tokens is None or np.isnan(scores[0]):
        return
    beams = len(part.scores)
    count = min(beams * len(tokens), scores.size)
    candidates[2:], scores[:] = -1, -np.inf
    scores[:count] = part.scores.repeat(len(tokens))[:count]
    candidates[1, :count] = 0  # the bits of 0.0 too
    candidates[2, :count] = np.arange(beams).repeat(len(tokens))[:count]
    candidates[3, :count] = np.tile(tokens, beams)[:count]
