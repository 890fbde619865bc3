"""Which of the sequences that wait begin to run in a step: the first of the queue, while there are
budget, slots and pages."""

from __future__ import annotations

from fusewire.engine.generation_queue import GenerationQueue
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Chunk, Step
from fusewire.engine.groups_of_step import to_store
from fusewire.engine.kv_cache import KvCache, OutOfPages
from fusewire.engine.running_sequences import RunningSequences
from fusewire.engine.sequence_pages import SequencePages


class SequenceAdmission:
    """Moves sequences from the queue, whose first is never overtaken, to those that run."""

    def __init__(
        self,
        cache: KvCache,
        waiting: GenerationQueue,
        running: RunningSequences,
        max_sequences: int,
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._max_sequences = max_sequences
        # The sequence that was refused and the pages that it wanted: the pages of a long prompt are
        # not looked up again and again while it waits.
        self._refused: tuple[GenerationSequence, int] | None = None

    def look_again(self) -> None:
        """Called when pages were stored that the refused sequence may find."""
        self._refused = None

    def must_wait(self, sequence: GenerationSequence, budget: int) -> bool:
        """Whether it is known of the first in the queue that it cannot run in a step with `budget`
        tokens left: slots, pages or budget are short."""
        if self._running.slots + sequence.slots > self._max_sequences:
            return True
        if self._refused is not None:
            refused, wanted = self._refused
            if refused is sequence and self._cache.available - self._spare(sequence) < wanted:
                return True
        source = sequence.source
        return source is not None and len(source) > budget and not self._cache.has(source)

    def admit(self, step: Step, budget: int, *, only_plain: bool = False) -> None:
        """Lets the first in the queue run while there are budget, slots and pages: all that their
        tokens need, their sources and the next forks of their beams, and beyond that one for each
        running sequence and beam, so that none is preempted soon after. `only_plain`: and while
        they are plain."""
        while budget and (sequence := self._waiting.first):
            if self.must_wait(sequence, budget) or (only_plain and not sequence.plain):
                return
            try:
                pages = self._give_pages(sequence, self._spare(sequence))
            except OutOfPages as error:
                self._refused = (sequence, error.wanted)
                return
            self._waiting.begin(sequence)
            self._running.add(sequence)
            source = pages.source
            if not sequence.started:
                sequence.started = True
                step.begun.append(sequence)
            if sequence.cached_tokens is None:  # preempted, it would find its own answer too
                found = source.tokens if source and source.stored else 0
                sequence.cached_tokens = pages.length + found
            if source and not source.stored and source.readers == 1:
                step.encodes.append(sequence)
                step.sources.append(source)
                budget -= len(source.source)
                if not budget:
                    return
            for each in to_store(sequence):
                tokens = min(each.left, budget)
                if tokens:  # for which it was given the pages
                    step.prompts.append(Chunk(each, each.stored, tokens))
                    budget -= tokens

    def _spare(self, sequence: GenerationSequence) -> int:
        """Pages that must still be available after the sequence is admitted."""
        slots = self._running.slots
        return slots + sequence.slots - sequence.beams if slots else 0

    def _give_pages(self, sequence: GenerationSequence, spare: int) -> SequencePages:
        """Gives a sequence pages for all that it stores before it goes on. Raises OutOfPages, and
        then changes nothing."""
        assert sequence.names is not None
        ids, source, beams = sequence.token_ids, sequence.source, sequence.beams
        if sequence.pasts:
            pages, pasts, after = self._cache.readmit(
                len(ids), sequence.pasts, sequence.names, beams, spare, source
            )
            sequence.return_with(pasts, after)
            sequence.stored = len(ids)
        else:
            for_beams = self._cache.beams.pages_for_first_fork(
                len(ids), sequence.most_tokens, beams
            )
            pages = self._cache.admit(
                ids, sequence.names, len(ids), spare, sequence.reusable, source, for_beams
            )
            sequence.stored = pages.length
        sequence.pages = pages
        return pages
