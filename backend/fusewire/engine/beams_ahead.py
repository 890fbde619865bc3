"""The step of searches behind one whose candidates nobody has read.

Which beams run on, and what they are told to read and write, follows from the candidates alone: the
best of them that end no text. So the device finds that by itself (`kernels.fork_beams`), and its
next step begins at once. The host reads the candidates meanwhile: which texts are finished, which
searches are done, what is certain. A search that is done has rows in one step in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_candidates import BeamCandidates
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.packing import pack_forked, sources_of

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
    # Of the step's rows, [rows, pages]: on the host, or where the device made it, there.
    block_table: NDArray[np.int32] | kernels.Tensor
    # Whether pages for the fork behind the step are given, and those for the next one reserved.
    prepared: bool = False
    # Whether the device has made the fork, and begun the step behind it.
    forked: bool = False


class BeamsAhead:
    """Of one model with one cache."""

    def __init__(self, model: DecoderModel, memory: DecoderCache) -> None:
        self._model = model
        self._memory = memory
        self._place = model.place

    def begin(
        self,
        found: FoundBeams,
        cohort: BeamCohort,
        fresh: NDArray[np.int32],
        process: Callable[[kernels.Tensor], kernels.Tensor],
    ) -> FoundBeams | None:
        """Gives the device the next step of the cohort, searches of those that were `found`;
        `fresh`: pages to write to, as `kernels.give_pages` has them. `process`: of its logits, what
        candidates are taken of. None where its tables would grow."""
        places = (cohort.rows.positions + 1) // self._memory.page_size
        sources = sources_of(cohort.rows, cohort.beams)
        width = self._model.table_width(
            int(places.max()) + 1, None if sources is None else sources.block_table.shape[1]
        )
        parents = self._table(found.block_table, width)
        if parents is None:
            return None
        rows, stream = int(cohort.offsets[-1]), self._place.stream
        candidates = cohort.next_candidates(self._place)
        ids = self._place.empty(rows, dtype="int64")
        table = self._place.empty(rows, width, dtype="int32")
        copies = self._place.empty(2, rows, dtype="int64")
        index = {group: at for at, group in enumerate(found.groups)}
        searches = np.array([index[group] for group in cohort.groups], np.int32)
        begins = found.candidates.offsets[searches]
        groups = np.stack([searches, begins, cohort.offsets[:-1], cohort.beams, places], axis=1)
        kernels.fork_beams(
            ids,
            candidates.scores,
            table,
            copies,
            *found.candidates.found,
            parents,
            *self._together(groups.astype(np.int32), fresh, cohort.ends),
            stream,
        )
        self._memory.copy(copies)
        batch = pack_forked(cohort.rows, cohort.beams, ids, table)
        logits = process(self._model.step(batch, self._memory))
        values = candidates.begin_there(logits, normalized=cohort.kind.normalized)
        return FoundBeams(cohort.rows.sequences, cohort.groups, candidates, values, table)

    def _table(
        self, table: NDArray[np.int32] | kernels.Tensor, width: int
    ) -> kernels.Tensor | None:
        """On the device and so wide; None where it is there and is not."""
        if isinstance(table, kernels.Tensor):
            return table if table.shape[1] == width else None
        wide = np.zeros((len(table), width), np.int32)
        shared = min(width, table.shape[1])
        wide[:, :shared] = table[:, :shared]
        return self._place.exact(wide, np.int32)

    def _together(self, *arrays: NDArray[np.int32]) -> list[kernels.Tensor]:
        """By one copy."""
        ends = np.cumsum([0, *(array.size for array in arrays)]).tolist()
        there = self._place.exact(np.concatenate([each.reshape(-1) for each in arrays]), np.int32)
        return [
            there.section(4 * begin, list(array.shape), "int32")
            for array, begin in zip(arrays, ends, strict=False)
        ]
