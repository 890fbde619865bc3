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
from fusewire.engine.beam_pasts import pasts_of
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence
from fusewire.engine.kv_cache import KvCache
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
        self.scores = np.zeros(1, np.float32)  # of them; first of the prompt
        self.first = 0  # of their rows among the request's

    def go_on(
        self,
        first: int,
        scores: NDArray[np.float32],
        parents: NDArray[np.int32],
        tokens: NDArray[np.int64],
    ) -> None:
        """The beams that run on, if any."""
        self.first, self.scores = first, scores
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
    ) -> None:
        self._place = place
        self._vocab_size = vocab_size
        self._sampler = sampler
        self._pages = pages
        self._memory = memory

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
        ends = accumulate((group.rows for group in groups), initial=first)
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
        forks = self._fork(offsets, parents, sequences, groups)
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
        table = self._fork(offsets, np.array(of_beams, np.int32), [sequence], [group])
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
            counts = [group.search.candidates for group in some]
            candidates = self._candidates(part_logits, parts, counts, normalized)
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

    def _candidates(
        self,
        logits: kernels.Tensor,
        parts: Sequence[BeamPart],
        wanted_of_each: Sequence[int],
        normalized: bool,
    ) -> NDArray[np.int32]:
        """[4, parts, most]: scores and log_probs (float32, in their bits), beams, tokens."""
        counts = np.array(wanted_of_each, np.int32)
        most = int(counts.max())
        ends = list(accumulate((len(part.scores) for part in parts), initial=0))
        offsets, wanted, scores = self._sampler.together(
            np.array(ends, np.int32),
            counts,
            np.concatenate([part.scores for part in parts]),
        )
        shape = [len(parts), most]
        out = self._place.empty(4, *shape, dtype="int32")  # read in one piece
        nbytes = 4 * len(parts) * most
        outputs = [
            out.section(part * nbytes, shape, dtype)
            for part, dtype in enumerate(("float32", "float32", "int32", "int32"))
        ]
        kernels.beam_candidates(
            *outputs, logits, offsets, wanted, scores, normalized, self._place.stream
        )
        return self._place.numpy(out)

    def _fork(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
    ) -> NDArray[np.int32]:
        """Beams get their parents' pages and room for one position more: their block table."""
        pages, taken = [], []
        for sequence, group in zip(sequences, groups, strict=True):
            assert sequence.pages is not None
            if group.pages is None:
                group.pages = kernels.BeamPages(
                    beams=sequence.beams,
                    page_size=self._pages.page_size,
                    tables=[self._pages.begin_beams(sequence.pages)],
                    length=sequence.pages.length,
                )
            pages.append(group.pages)
            taken.append(sequence.pages)
        fresh: list[int] = []
        wanted = kernels.wanted_pages(pages, offsets).tolist()
        for each, count in zip(taken, wanted, strict=True):
            fresh += self._pages.take_for_beams(each, count)
        forks = kernels.fork_pages(pages, offsets, parents, np.array(fresh, np.int32))
        # At once: a group may end before the next step, and then its pages are others'.
        self._memory.copy_pages(forks.sources.tolist(), forks.destinations.tolist())
        released, ends = forks.released.tolist(), forks.released_offsets.tolist()
        for each, begin, end in zip(taken, ends, ends[1:], strict=False) if released else ():
            own = each.beam_pages.intersection(released[begin:end])
            self._pages.release_of_beams(each, sorted(own))
        table: NDArray[np.int32] = forks.block_table
        return table


def _settled(
    step: kernels.BeamStep, groups: Sequence[BeamGroup]
) -> dict[BeamGroup, list[tuple[int, float]]]:
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
