"""Beam search, a step of all groups at once: logits become candidates, these the beams that run on,
and pages are copied where beams fork.

As transformers' `generate` has it: log-probabilities first, then biases, bans and penalties, which
are normalised again for `renormalize_logits` alone; a forced token has log-probability 0. Which
candidates run on, which are finished and when a search is done: `kernels.BeamSearch`; what their
pages are: `kernels.BeamPages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.sampling import Sampler, SamplingState
from fusewire.models.decoder_cache import DecoderCache
from fusewire.placement import Placement

__all__ = ["MOST_CANDIDATES", "BeamGroup", "BeamGroups"]

# Of a group and step: `kernels.beam_candidates` sorts no more.
MOST_CANDIDATES = 2048


class BeamGroup:
    """The beams of one request."""

    def __init__(
        self, search: kernels.BeamSearch, sampling: SamplingState, *, renormalizes: bool = False
    ) -> None:
        """`sampling`: what changes log-probabilities, before the first token; `renormalizes`:
        whether they are normalised again after that."""
        self.search = search
        self.renormalizes = renormalizes
        self.scores = np.zeros(1, np.float32)  # of the beams; first of the prompt
        self.pages: kernels.BeamPages | None = None  # once the prompt is stored
        self.states = [sampling]  # of each beam, or of all where no history matters

    @property
    def changes_log_probs(self) -> bool:
        return self.states[0].changes_logits

    def states_of_rows(self) -> list[SamplingState]:
        many = self.states[0].has_history
        return self.states if many else self.states * len(self.scores)

    def go_on(
        self,
        scores: NDArray[np.float32],
        parents: NDArray[np.int32],
        tokens: NDArray[np.int64],
    ) -> None:
        """The beams that run on."""
        self.scores = scores
        if not self.states[0].has_history:
            self.states[0].append(-1)
            return
        self.states = [self.states[parent].branch() for parent in parents.tolist()]
        for state, token in zip(self.states, tokens.tolist(), strict=True):
            state.append(token)


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
        types: dict[tuple[bool, bool], list[BeamGroup]] = {}
        for group in groups:
            processed = group.changes_log_probs
            types.setdefault((processed, processed and not group.renormalizes), []).append(group)
        ends = list(accumulate((len(each.scores) for each in groups), initial=first))
        begins = dict(zip(groups, ends[:-1], strict=True))
        found = {}
        for (processed, normalized), some in types.items():
            rows = [np.arange(begins[each], begins[each] + len(each.scores)) for each in some]
            part = self._rows(logits, np.concatenate(rows))
            if processed:
                part = self._processed(part, some)
            candidates = self._candidates(part, some, normalized)
            found.update({each: candidates[:, row] for row, each in enumerate(some)})
        most = max(each.shape[1] for each in found.values())
        together = np.full((4, len(groups), most), -1, np.int32)
        together[:2].view(np.float32)[:] = -np.inf
        for row, group in enumerate(groups):
            candidates = found[group]
            together[:, row, : candidates.shape[1]] = candidates
            _force(group, together[:, row])
        scores, log_probs = (together[part].view(np.float32) for part in (0, 1))
        searches = [group.search for group in groups]
        step = kernels.advance_beams(searches, scores, log_probs, together[2], together[3])
        forks = self._fork(step.offsets, step.parents, sequences, groups)
        for at, (sequence, group) in enumerate(zip(sequences, groups, strict=True)):
            own = slice(*step.offsets[at : at + 2].tolist())
            if own.start == own.stop:
                sequence.rows = None
                continue
            tokens = step.tokens[own]
            group.go_on(step.scores[own], step.parents[own], tokens)
            assert sequence.pages is not None
            stored = group.search.length - 1  # by each beam, behind the prompt
            sequence.rows = BeamRows(tokens, sequence.pages.length + stored, forks[own])
            self._pages.advance_beams(sequence.pages, stored * len(tokens))
        return _settled(step, groups)

    def _rows(self, logits: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        if len(rows) == logits.shape[0]:  # in order, unless groups of both types meet
            return logits
        part = kernels.empty([len(rows), self._vocab_size], logits.dtype, stream=self._place.stream)
        where = self._place.exact(rows, np.int64)
        kernels.gather_rows(part, logits, where, self._place.stream)
        return part

    def _processed(self, logits: kernels.Tensor, groups: Sequence[BeamGroup]) -> kernels.Tensor:
        """Log-probabilities, float32, with biases, bans and penalties."""
        log_probs = self._place.empty(*logits.shape, dtype="float32")
        kernels.log_softmax(log_probs, logits, self._place.stream)
        states = [state for group in groups for state in group.states_of_rows()]
        self._sampler.constrain(log_probs, states)
        return log_probs

    def _candidates(
        self, logits: kernels.Tensor, groups: Sequence[BeamGroup], normalized: bool
    ) -> NDArray[np.int32]:
        """[4, groups, most]: scores and log_probs (float32, in their bits), beams, tokens."""
        counts = np.array([group.search.candidates for group in groups], np.int32)
        most = int(counts.max())
        ends = list(accumulate((len(group.scores) for group in groups), initial=0))
        offsets, wanted, scores = self._sampler.together(
            np.array(ends, np.int32),
            counts,
            np.concatenate([group.scores for group in groups]),
        )
        shape = [len(groups), most]
        out = self._place.empty(4, *shape, dtype="int32")  # read in one piece
        nbytes = 4 * len(groups) * most
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
        released = set(forks.released.tolist())
        for each in taken if released else ():
            self._pages.release_of_beams(each, sorted(released & each.beam_pages))
        table: NDArray[np.int32] = forks.block_table
        return table


def _settled(
    step: kernels.BeamStep, groups: Sequence[BeamGroup]
) -> dict[BeamGroup, list[tuple[int, float]]]:
    news = zip(step.settled_tokens.tolist(), step.settled_log_probs.tolist(), strict=True)
    counts = np.diff(step.settled_offsets)
    return {groups[at]: list(islice(news, counts[at])) for at in counts.nonzero()[0]}


def _force(group: BeamGroup, candidates: NDArray[np.int32]) -> None:
    """Where the next token is forced, the candidates [4, most] are that of each beam; unless the
    logits were not finite."""
    state = group.states[0]
    token = state.forced.get(state.new_tokens)
    scores = candidates[0].view(np.float32)
    if token is None or np.isnan(scores[0]):
        return
    beams = len(group.scores)
    candidates[2:], scores[:] = -1, -np.inf
    scores[:beams] = group.scores
    candidates[1, :beams] = 0  # the bits of 0.0 too
    candidates[2, :beams] = np.arange(beams)
    candidates[3, :beams] = token
