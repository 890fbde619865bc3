"""A request's place among all that generation has taken."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fusewire.engine.generation_sequence import GenerationSequence, State


@dataclass(eq=False, slots=True)
class Place:
    """A request's, from when it is taken until its last sequence has ended."""

    slots: int  # of its sequences that have not ended
    tokens: float  # of its prompt, and of its source
    most_new: int  # tokens that each of its sequences may generate
    priority: int = 0  # lower runs first
    tenant: str = ""
    deadline: float = inf
    # Of requests that go on from it with its slots: tokens of their prompts and sources, and those
    # that each of their sequences may generate.
    later_tokens: float = 0
    later_new: int = 0
    taken_at: float = -inf
    # When it has to run to end in time; None: it need not wait, or has all time.
    begin_by: float | None = None
    cost_s: float = 0.0  # predicted, of the whole machine
    is_shared: bool = False  # among those of which each tenant has its share
    sequence: GenerationSequence | None = None  # its first, once the scheduler has it
    begun: int = 0  # tokens of that at first

    @property
    def runs(self) -> bool:
        """Its first sequence may have ended before others."""
        return self.sequence is not None and self.sequence.state is not State.WAITING

    @property
    def generated(self) -> int:
        """Of its first sequence; of a beam search 0 until it ends."""
        return 0 if self.sequence is None else len(self.sequence.token_ids) - self.begun
