"""The sequences that run, by what a step does with each, and the slots that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from fusewire.engine.decode_rows import DecodeRows
from fusewire.engine.generation_sequence import RANK, GenerationSequence, Ranked, State
from fusewire.engine.kv_cache import KvCache


class RunningSequences:
    """`prompts` and `rows` are the sequences without beams, `groups` those with beams."""

    def __init__(self, page_size: int) -> None:
        self.rows = DecodeRows(page_size)  # those with one token left
        self.prompts = Ranked()  # the others
        self.groups = Ranked()
        self.beams = 0  # slots of `groups`
        self.slots = 0  # one for each of their continuations, or beams
        self._single = Ranked()  # those of `rows` and `prompts`, and those that are done
        # Whose last token nobody has read yet: they only have their pages.
        self._done: set[GenerationSequence] = set()

    def __len__(self) -> int:
        return len(self._single) + len(self.groups)

    def __iter__(self) -> Iterator[GenerationSequence]:
        return chain(self._single, self.groups)

    @property
    def last(self) -> GenerationSequence:
        """The last by rank."""
        return max((each[-1] for each in (self._single, self.groups) if each), key=RANK)

    @property
    def most_pages(self) -> int:
        """Pages for one more token of each sequence and beam, at most."""
        return len(self._single) + self.beams

    def wanted_pages(self, prompts: Iterable[GenerationSequence], cache: KvCache) -> int:
        """Pages for the next token of each of `rows` and of these `prompts`."""
        return sum(
            cache.wanted(sequence.pages, sequence.stored + 1)
            for sequence in [*self.rows.growing, *prompts]
            if sequence.pages is not None
        )

    def add(self, sequence: GenerationSequence) -> None:
        if sequence.beams:
            self.groups.add(sequence)
            self.beams += sequence.beams
        else:
            self._single.add(sequence)
            self.prompts.add(sequence)
        self.slots += sequence.slots
        sequence.state = State.RUNNING

    def remove(self, sequence: GenerationSequence) -> None:
        if sequence.beams:
            self.groups.remove(sequence)
            self.beams -= sequence.beams
        else:
            self._single.remove(sequence)
            if sequence in self._done:
                self._done.remove(sequence)
                return
            self._leave(sequence)
        self.slots -= sequence.slots

    def done(self, sequence: GenerationSequence) -> None:
        """Takes note that a sequence without beams, whose last token nobody has read yet, runs in
        no further step: others may have its slot."""
        self._leave(sequence)
        self._done.add(sequence)
        self.slots -= sequence.slots

    def _leave(self, sequence: GenerationSequence) -> None:
        if sequence in self.rows:
            self.rows.leave(sequence)
        else:
            self.prompts.remove(sequence)

    def begin_rows(self) -> None:
        """Lets sequences whose prompts are stored take a token in every step from here on. One that
        is yet to be forked has its last prompt token left."""
        ready = [each for each in self.prompts if each.left == 1 and each.continuations == 1]
        for sequence in ready:
            self.prompts.remove(sequence)
            self.rows.join(sequence)
