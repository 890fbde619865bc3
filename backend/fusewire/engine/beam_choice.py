"""The step of searches whose parameters have a say in it: biases, bans and penalties on
log-probabilities, diverse groups one after the other.

As transformers' `generate` has it: log-probabilities first, then biases, bans and penalties, which
are normalised again for `renormalize_logits` alone; a forced token has log-probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates, forced
from fusewire.engine.beam_group import BeamGroup, BeamPart, StepKind
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.placement import Placement


class BeamChoice:
    """Chooses how searches go on, with a model's placement and vocabulary."""

    def __init__(self, place: Placement, vocab_size: int, processor: LogitsProcessor) -> None:
        self._place = place
        self._vocab_size = vocab_size
        self._processor = processor

    def advance(
        self,
        index: int,
        logits: kernels.Tensor,
        begins: Mapping[BeamGroup, int],
        groups: Sequence[BeamGroup],
    ) -> None:
        """Takes part `index` of the groups a step on. `begins`: the first row of logits of each
        group."""
        kinds: dict[StepKind, list[BeamGroup]] = {}
        for group in groups:
            processed = group.parts[index].sampling.changes_logits
            kind = StepKind(processed, processed and not group.renormalizes)
            kinds.setdefault(kind, []).append(group)
        found = {}
        for (processed, normalized), some in kinds.items():
            parts = [group.parts[index] for group in some]
            firsts = [begins[group] + group.parts[index].first for group in some]
            rows = [
                np.arange(at, at + len(part.scores)) for at, part in zip(firsts, parts, strict=True)
            ]
            part_logits = self.rows(logits, np.concatenate(rows))
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
            part = group.parts[index]
            if part.forced is not None:
                own = together[:, row : row + 1]
                own[:] = forced(own, part.scores[None], part.forced)
        scores, log_probs = (together[row].view(np.float32) for row in (0, 1))
        searches = [group.search for group in groups]
        kernels.advance_beams(searches, scores, log_probs, together[2], together[3], index)

    def rows(self, logits: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
        """The given `rows` of logits [rows, vocab]; the logits themselves where these are all."""
        if len(rows) == logits.shape[0]:  # in order, unless groups of both types meet
            return logits
        part = kernels.empty([len(rows), self._vocab_size], logits.dtype, stream=self._place.stream)
        where = self._place.exact(rows, np.int64)
        kernels.gather_rows(part, logits, where, self._place.stream)
        return part

    def log_probs(self, logits: kernels.Tensor) -> kernels.Tensor:
        """Log-probabilities of logits [rows, vocab], float32."""
        log_probs = self._place.empty(*logits.shape, dtype="float32")
        kernels.log_softmax(log_probs, logits, self._place.stream)
        return log_probs

    def _processed(self, logits: kernels.Tensor, parts: Sequence[BeamPart]) -> kernels.Tensor:
        """Log-probabilities of the beams of the parts, with biases, bans and penalties."""
        for part in parts:
            if part.sampling.fixed:  # its beams may have gone on without it
                part.sampling.spread(len(part.scores))
        log_probs = self.log_probs(logits)
        self._processor.process(log_probs, [part.sampling for part in parts])
        return log_probs
