"""A request's place among all that generation has taken."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fusewire.engine.generation_sequence import GenerationSequence, State


@dataclass(eq=False, slots=True)
class Place:
    """A request's place, from when it is taken until its last sequence has ended."""

    slots: int  # slots of its sequences that have not ended
    tokens: float  # tokens of its prompt, and of its source
    most_new: int  # tokens that each of its sequences may generate
    priority: int = 0  # lower runs first
    tenant: str = ""
    deadline: float = inf
    # For requests that go on from it with its slots: tokens of their prompts and sources, and those
    # that each of their sequences may generate.
    later_tokens: float = 0
    later_new: int = 0
    taken_at: float = -inf
    # When it has to run to end in time; None: it need not wait, or has all time.
    begin_by: float | None = None
    cost_s: float = 0.0  # predicted, of the whole machine
    is_shared: bool = False  # whether it counts for its tenant's share
    sequence: GenerationSequence | None = None  # its first, once the scheduler has it
    begun: int = 0  # tokens that this began with

    @property
    def runs(self) -> bool:
        """Whether its first sequence runs, or has ended, which it may before others."""
        return self.sequence is not None and self.sequence.state is not State.WAITING

    @property
    def generated(self) -> int:
        """Tokens that its first sequence has generated; for a beam search 0 until it ends."""
        return 0 if self.sequence is None else len(self.sequence.token_ids) - self.begun
