"""A sequence that is generated, as the scheduler sees it: tokens, rank, state."""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from fusewire.engine.beam_rows import BeamRows, BeamRowsOf
from fusewire.engine.sequence_pages import PageNames, SequencePages
from fusewire.engine.source_pages import Source

__all__ = ["BeamRows", "GenerationSequence", "Ranked", "State"]


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class GenerationSequence:
    """A prompt and what was generated after it; for an encoder-decoder model the prompt is the
    decoder's, and `source` what the encoder reads.

    The engine appends to `token_ids`; everything from `stored` on is the scheduler's. The last
    token of a running sequence is never stored yet: it is what the next step computes with.
    """

    token_ids: list[int]  # the prompt, then what was generated
    most_tokens: int  # how long token_ids may get
    priority: int = 0  # lower runs first
    deadline: float | None = None  # seconds on `plan`'s clock
    begin_by: float | None = None  # expires unless it ran by then; None: by the deadline
    goes_on: bool = False  # continues one that has just ended, before those that wait
    tenant: str = ""  # who shares the machine fairly with others
    cost_s: float = 0.0  # predicted seconds of the machine, all alone
    continuations: int = 1  # sequences that go on from the prompt, this one included
    to_score: int = 0  # prompt tokens whose logits are wanted, from the first on
    source: Source | None = None  # shared with all its forks
    beams: int = 0  # of a beam search after the prompt, all of token_ids then; 0: no search
    # For a search: what each running beam has generated; asked for when it is preempted.
    histories: Callable[[], Sequence[Sequence[int]]] | None = None
    search: GenerationSequence | None = None  # the search whose past this is; it has no answer
    after: GenerationSequence | None = None  # the one that stores what this past begins with

    rows: BeamRows | BeamRowsOf | None = field(init=False, default=None)  # of a search
    # For a search that was preempted: what its beams had stored; and while it runs again, the
    # sequences that store it.
    pasts: Sequence[list[int]] = field(init=False, default=())
    returning: Sequence[GenerationSequence] = field(init=False, default=())
    stored: int = field(init=False, default=0)  # tokens in the cache
    scored: int = field(init=False, default=0)  # tokens whose wanted logits were computed
    # Tokens of prompt and source that were in the prefix cache when it first ran; None until then.
    cached_tokens: int | None = field(init=False, default=None)
    pages: SequencePages | None = field(init=False, default=None)  # while running
    names: PageNames | None = field(init=False, default=None)
    state: State = field(init=False, default=State.WAITING)
    started: bool = field(init=False, default=False)  # has run at least once
    # Lowest first: by priority, then by arrival, which the scheduler counts; a fork, of which it
    # counts the branches from 1 on, right after what it was forked from. No two sequences of a
    # scheduler have the same.
    rank: tuple[int, int, int] = field(init=False, default=(0, -1, 0))

    @property
    def slots(self) -> int:
        """Sequences that it counts for."""
        return self.beams or self.continuations

    @property
    def left(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.stored

    @property
    def ends_next(self) -> bool:
        """Whether its next token is the last that there is room for."""
        return len(self.token_ids) + 1 >= self.most_tokens

    @property
    def plain(self) -> bool:
        """Whether a step has nothing to do for it but to compute its tokens: no encoder pass, no
        forks or beams, no logits within its prompt."""
        apart = self.source is not None or self.slots > 1 or self.beams or self.search is not None
        return not apart and self.scored == self.to_score

    @property
    def reusable(self) -> int:
        """Tokens that need not be computed where the prefix cache has them: logits come with
        computing alone."""
        return len(self.token_ids) if self.scored == self.to_score else self.scored

    @property
    def ready(self) -> bool:
        """Whether what its first tokens depend on is stored."""
        return self.after is None or self.after.left == 0

    def return_with(self, pages: Sequence[SequencePages], after: Sequence[int | None]) -> None:
        """Makes `returning`: a sequence for each of the `pasts`, with its pages; `after`: the index
        of the one that it comes after, or None."""
        returning: list[GenerationSequence] = []
        for past, of_past, before in zip(self.pasts, pages, after, strict=True):
            each = GenerationSequence(
                past,
                len(past),
                self.priority,
                source=self.source,
                search=self,
                after=None if before is None else returning[before],
            )
            each.rank, each.state = self.rank, State.RUNNING
            each.pages, each.stored = of_past, of_past.length
            returning.append(each)
        self.returning = returning

    def twin(self, pages: SequencePages, branch: int) -> GenerationSequence:
        """A sequence of the same type that goes on from here by itself, with `pages`."""
        twin = copy.copy(self)
        twin.token_ids = self.token_ids[:]
        twin.pages, twin.names, twin.rank = pages, pages.names, (*self.rank[:2], branch)
        twin.continuations = 1
        return twin


class Ranked(list[GenerationSequence]):
    """Sequences in the order of their rank, the first to run first."""

    def add(self, sequence: GenerationSequence) -> None:
        if not self or self[-1].rank < sequence.rank:  # as most come
            self.append(sequence)
        else:
            insort(self, sequence, key=RANK)

    def remove(self, sequence: GenerationSequence) -> None:
        # Sequences that end together are removed from the first on.
        place = 0 if self[0] is sequence else bisect_left(self, sequence.rank, key=RANK)
        assert self[place] is sequence
        del self[place]


RANK = attrgetter("rank")
