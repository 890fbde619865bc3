"""The pages of searches' beams: given where beams begin, copied and shared where they fork, and
released where nobody needs them.

Which beams have which pages: `kernels.BeamPages`; whose they are: `KvCache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.beam_pasts import pasts_of
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.sequence_pages import SequencePages

if TYPE_CHECKING:
    from fusewire.models.decoder_cache import DecoderCache


class BeamForks:
    """Gives, copies and releases the pages of beams in one cache."""

    def __init__(self, pages: KvCache, memory: DecoderCache) -> None:
        self._pages = pages
        self._memory = memory

    def begin(self, sequences: Sequence[GenerationSequence], groups: Sequence[BeamGroup]) -> None:
        """Gives groups whose prompt was stored in this step the pages of their beams."""
        for sequence, group in zip(sequences, groups, strict=True):
            if group.pages is None:
                assert sequence.pages is not None
                group.pages = kernels.BeamPages(
                    beams=sequence.beams,
                    page_size=self._pages.page_size,
                    tables=[self._pages.beams.begin(sequence.pages)],
                    length=sequence.pages.length,
                )

    def resume(self, sequence: GenerationSequence, group: BeamGroup) -> None:
        """Resumes a preempted group, of which all that its beams had stored is stored again: gives
        its sequence the `rows` that it had."""
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
        parents = np.array(of_beams, np.int32)
        self.give_pages([group.pages], offsets, [sequence.pages])
        self.fork(offsets, parents, [group.pages], [sequence.pages])
        tokens = np.array([history[-1] for history in histories], np.int64)
        stored = (position - sequence.pages.length) * len(tokens)
        table = kernels.beam_tables([group.pages], offsets)
        sequence.rows, sequence.returning = BeamRows(tokens, position, table, stored), ()
        self._pages.advance_beams(stored)

    def give_pages(
        self,
        pages: list[kernels.BeamPages],
        offsets: NDArray[np.int32],
        taken: Sequence[SequencePages],
    ) -> NDArray[np.int32]:
        """Gives the next fork the pages that it writes to, of those reserved; returns what
        `kernels.give_pages` does."""
        wanted = kernels.wanted_pages(pages, offsets)
        fresh = self._pages.beams.take(taken, wanted.tolist())
        return kernels.give_pages(pages, offsets, np.array(fresh, np.int32))

    def fork(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        pages: list[kernels.BeamPages],
        taken: Sequence[SequencePages],
        *,
        forked: bool = False,
    ) -> None:
        """Gives beams their parents' pages and room for one more position, in pages from
        `give_pages`. `forked`: the device has made the copies already."""
        forks = kernels.fork_pages(pages, offsets, parents)
        if not forked:
            # At once: a group may end before the next step, and then its pages are others'.
            self._memory.copy_pages(forks.sources, forks.destinations, forks.positions)
        if not forks.released.size:
            return
        released, ends = forks.released.tolist(), forks.released_offsets.tolist()
        for each, begin, end in zip(taken, ends, ends[1:], strict=False):
            if begin < end:
                own = each.beam_pages.intersection(released[begin:end])
                self._pages.beams.release(each, sorted(own))
