"""The step of searches after one whose candidates nobody has read.

Which beams run on, and what they are told to read and write, follows from the candidates alone: the
best of them that end no text. So the device finds that by itself (`kernels.fork_beams`), and its
next step begins at once. The host reads the candidates meanwhile: which texts are finished, which
searches are done, what is certain. A search that is done has rows in one step in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.packing import pack_behind, pack_forked, sources_of
from fusewire.models.step_batch import StepBatch

if TYPE_CHECKING:
    from fusewire.engine.beam_cohort import BeamCohort
    from fusewire.engine.beam_group import BeamGroup
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache


@dataclass(eq=False)
class FoundBeams:
    """What a step found for searches that took it together, on its way to the host."""

    sequences: Sequence[GenerationSequence]
    groups: Sequence[BeamGroup]
    candidates: BeamCandidates
    values: kernels.Readback
    # The block table of the step's rows, [rows, pages]: on the host, or on the device that made it.
    block_table: NDArray[np.int32] | kernels.Tensor
    # The step's batch, where it was begun ahead.
    batch: StepBatch | None = None
    # Whether pages for the fork after the step are given, and those for the next one reserved.
    prepared: bool = False
    # Whether the device has made the fork, and begun the step after it.
    forked: bool = False


class BeamsAhead:
    """Begins steps of searches ahead, for one model with one cache."""

    def __init__(self, model: DecoderModel, memory: DecoderCache) -> None:
        self._model = model
        self._memory = memory
        self._place = model.place

    def begin(
        self,
        found: FoundBeams,
        cohort: BeamCohort,
        fresh: NDArray[np.int32] | None,
        process: Callable[[kernels.Tensor], kernels.Tensor],
    ) -> FoundBeams | None:
        """Gives the device the next step of the cohort, searches of those that were `found`.
        `fresh`: pages to write to, as `kernels.give_pages` has them; None: there are none.
        `process`: makes of logits what candidates are chosen by. None where the block table would
        grow."""
        sources = sources_of(cohort.rows, cohort.beams)
        of_sources = None if sources is None else sources.block_table.shape[1]
        width = cohort.table_width(partial(self._model.table_width, source_pages=of_sources))
        parents = self._table(found.block_table, width)
        if parents is None:
            return None
        candidates = cohort.next_candidates(self._place)
        forks = cohort.fork_memory(self._place, width)
        searches, begins = cohort.places_in(found.groups), cohort.offsets[:-1]
        goes_on = searches is None
        if searches is not None:
            begins = found.candidates.offsets[searches]
        forks.tell(found.groups, searches, begins, cohort.rows.places, fresh)
        table = forks.fork(candidates.scores, found.candidates.found, parents)
        source, destination = forks.copies
        self._memory.copy(source, destination, cohort.rows.most_in_page)
        if goes_on and found.batch is not None:
            batch = pack_behind(found.batch, forks.ids, table)
        else:
            batch = pack_forked(cohort.rows, cohort.beams, forks.ids, table)
        logits = process(self._model.step(batch, self._memory))
        values = candidates.begin_there(logits, normalized=cohort.kind.normalized)
        return FoundBeams(cohort.rows.sequences, cohort.groups, candidates, values, table, batch)

    def _table(
        self, table: NDArray[np.int32] | kernels.Tensor, width: int
    ) -> kernels.Tensor | None:
        """The block table on the device, `width` pages wide; None where the device's own has
        another width."""
        if isinstance(table, kernels.Tensor):
            return table if table.shape[1] == width else None
        wide = np.zeros((len(table), width), np.int32)
        shared = min(width, table.shape[1])
        wide[:, :shared] = table[:, :shared]
        return self._place.exact(wide, np.int32)
