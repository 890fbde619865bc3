"""What sequences take, as those before them did: tokens, steps, prompts and pages."""

from __future__ import annotations

from math import ceil

from fusewire.engine.costs import CostTable
from fusewire.engine.forecast import Need
from fusewire.engine.place import Place

# Of tokens that were allowed and generated, what is remembered of the sequences before the last.
_DECAY = 0.95
# Of the times between steps, what is remembered of those before the last.
_PACE_DECAY = 0.98


class SequenceTimes:
    """A sequence generates, of the tokens that it may, the share that others did, a token a step.
    One thread at a time."""

    def __init__(self, costs: CostTable, max_sequences: int, pages: float, page_size: int) -> None:
        """`max_sequences` run at a time, with their keys and values in `pages` of `page_size`
        tokens."""
        self.costs = costs
        self.max_sequences = max_sequences
        self.pages, self.page_size = pages, page_size
        self._generated = self._allowed = 0.0
        # Of the tokens that were allowed: those that were generated, where that is known.
        self.share = 1.0
        # The times between steps, prompts and the host's work among them, and what steps of so many
        # sequences cost alone.
        self._between_s = self._steps_s = 0.0

    @property
    def known(self) -> bool:
        """One has ended."""
        return self._allowed > 0

    def ended(self, most_new: int, generated: int) -> None:
        """One generated so many, of as many as it might."""
        self._generated = _DECAY * self._generated + generated
        self._allowed = _DECAY * self._allowed + most_new
        self.share = self._generated / self._allowed if self._allowed else 1.0

    def stepped(self, alone_s: float, seconds: float) -> None:
        """Sequences that ran got their next token so long after the one before, in a step of so
        many predicted seconds."""
        self._between_s = _PACE_DECAY * self._between_s + seconds
        self._steps_s = _PACE_DECAY * self._steps_s + alone_s

    def step_s(self, sequences: int) -> float:
        """Between two tokens of a sequence, where so many are here."""
        alone_s = self.costs.seconds(min(sequences, self.max_sequences), 0.0)
        return alone_s * max(1.0, self._between_s / self._steps_s if self._steps_s else 1.0)

    def left(self, place: Place) -> float:
        """Tokens that each of its sequences still generates."""
        return max(1.0, self.share * (place.most_new - place.generated))

    def left_s(self, place: Place, step_s: float) -> float:
        """Until one that runs has ended, and those which go on from it."""
        return self.left(place) * step_s + self.later_s(place, step_s)

    def pages_of(self, place: Place) -> float:
        """That it needs until it ends: its prompt's, which its sequences share, and theirs."""
        return self._pages(place, self.left(place))

    def _pages(self, place: Place, left: float) -> float:
        shared, rest = divmod(place.tokens, self.page_size)
        each = ceil((rest + place.generated + left) / self.page_size)
        return min(shared + place.slots * each, self.pages)

    def need(self, place: Place, sequences: int) -> Need:
        """Of one that waits, where so many are here."""
        prompt_s = self.costs.share(place.tokens, 0.0)
        step_s, left = self.step_s(sequences), self.left(place)
        pages = self._pages(place, left)
        run_s = left * step_s + self.later_s(place, step_s)
        part = max(place.slots / self.max_sequences, pages / self.pages)
        return Need(place.slots, pages, prompt_s, run_s, prompt_s + part * run_s)

    def run_s(self, place: Place, sequences: int) -> float:
        """From when it begins to run until its last sequence ends, where so many are here."""
        if not self.known:
            return 0.0
        step_s = self.step_s(sequences)
        return self.costs.share(place.tokens, 0.0) + self.left_s(place, step_s)

    def later_s(self, place: Place, step_s: float) -> float:
        """That those take which go on from it."""
        if not (place.later_new or place.later_tokens):
            return 0.0
        new = self.share * place.later_new
        return self.costs.share(place.later_tokens, 0.0) + new * step_s
