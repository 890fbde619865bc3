"""What a step of generation computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from fusewire.engine.decode_rows import Decodes
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.source_pages import SourcePages


class Chunk(NamedTuple):
    """Tokens first to first + tokens - 1 of a sequence are computed and stored in this step."""

    sequence: GenerationSequence
    first: int
    tokens: int


@dataclass(eq=False)
class Step:
    """What to do: the copies (no page is both source and target), then an encoder pass over
    `sources`, then all chunks (decodes, then prompts), and the rows of all groups, at once."""

    decodes: Decodes = field(default_factory=Decodes.none)
    prompts: list[Chunk] = field(default_factory=list)  # chunks of the other sequences
    copies: list[tuple[int, int]] = field(default_factory=list)  # pages (from, to)
    encodes: list[GenerationSequence] = field(default_factory=list)  # whose sources are encoded
    # The pages of these sources, which others with equal ones share.
    sources: list[SourcePages] = field(default_factory=list)
    groups: list[GenerationSequence] = field(default_factory=list)  # whose beams go on
    beams: int = 0  # how many these have
    # In a step of groups that is planned ahead: pages to reserve for each one's fork after it.
    reserved: list[int] = field(default_factory=list)
    resumed: list[GenerationSequence] = field(default_factory=list)  # whose beams go on after it
    begun: list[GenerationSequence] = field(default_factory=list)  # that never ran before
    preempted: list[GenerationSequence] = field(default_factory=list)  # waiting again
    expired: list[GenerationSequence] = field(default_factory=list)  # finished, never ran

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of decodes and prompts, in order."""
        decodes = zip(self.decodes.rows.sequences, self.decodes.positions.tolist(), strict=True)
        return [*(Chunk(sequence, first, 1) for sequence, first in decodes), *self.prompts]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute, nor to resume."""
        some = self.decodes.rows.sequences or self.prompts or self.encodes
        return not (some or self.groups or self.resumed)

    @property
    def tokens(self) -> int:
        """Tokens of chunks, sources and beams."""
        encoded = sum(len(each.source) for each in self.sources)
        of_prompts = sum(map(itemgetter(2), self.prompts))
        return len(self.decodes.rows.sequences) + of_prompts + encoded + self.beams

    @property
    def sequences(self) -> list[GenerationSequence]:
        """The sequences of which something is computed."""
        chunks = [*self.decodes.rows.sequences, *(chunk.sequence for chunk in self.prompts)]
        running = dict.fromkeys(each.search or each for each in chunks)
        groups = dict.fromkeys(self.groups + self.resumed)
        return list(running | dict.fromkeys(self.encodes) | groups)
