"""A running request and its branches, the continuations that it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.continuation import Continuation, Delta
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.place import Place
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.engine.sampling_state import SamplingState
from fusewire.errors import FusewireError

# An event of a request: what a step added, or the error that ends it.
Event = Delta | FusewireError


@dataclass(eq=False, slots=True)
class Branch:
    """One continuation of a request, as each part of the engine knows it."""

    continuation: Continuation
    sampling: SamplingState
    quiet: bool = False  # nothing is told before its end but when it is asked
    asked: bool = False  # for a quiet one: its next token is told, with those before it
    sequence: GenerationSequence | None = None  # of all but the first: once the prompt is stored
    open: bool = True
    places: int = 1  # sequences that it counts as in its request's place
    untold: list[float] = field(default_factory=list)  # log-probabilities of tokens, while quiet
    first_at: float | None = None  # when the first of these came, by time.monotonic()

    @property
    def num_output_tokens(self) -> int:
        return self.continuation.num_output_tokens + len(self.untold)

    @property
    def most_left(self) -> int:
        """Tokens until it is as long as it may be."""
        return self.continuation.max_new_tokens - self.num_output_tokens

    def ends(self, token: int) -> bool:
        """Whether `token`, the last of its tokens, which is untold, ends it."""
        return self.continuation.ends(token, self.num_output_tokens)


@dataclass(eq=False, slots=True)
class Generation:
    """A running request: its branches, and the callback for their events, which must return at
    once. The branches of a beam search are its best hypotheses, which end together; the sequence of
    the first is that of all."""

    branches: list[Branch]
    on_event: Callable[[Event], None]
    place: Place  # its place in the admission
    beams: BeamGroup | None = None
    prompt_logprobs: PromptLogprobs | None = None  # where requested, until the first event has them
    # What the decoder begins with, where texts are to be aligned with their source; and for audio
    # the number of its positions that tokens are aligned with.
    decoder_ids: Sequence[int] = ()
    heard: int = 0
    open: int = field(init=False)  # branches that have not ended

    def __post_init__(self) -> None:
        self.open = len(self.branches)

    def ask(self) -> None:
        """Asks that the next token of a single quiet branch is told. From any thread."""
        self.branches[0].asked = True

    def num_output_tokens(self) -> int:
        """Tokens that all branches have generated so far. From any thread."""
        return sum([branch.num_output_tokens for branch in self.branches])
