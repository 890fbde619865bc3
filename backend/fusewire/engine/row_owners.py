"""Whose the rows of a step's logits are, for as many steps as these stay the same."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.engine.branches import Branch, Generation
from fusewire.engine.sampling_rows import SamplingRows


class Owners:
    """The branches to which a step's rows of logits belong, in order; for sequences that take one
    token each, for as many steps as these stay the same. For quiet branches a step only notes the
    token."""

    def __init__(self, owners: Sequence[tuple[Generation, Branch]], unread: int = 0) -> None:
        """`unread`: how many tokens of each are not read yet."""
        self.all = owners
        self.sampling = SamplingRows([branch.sampling for _, branch in owners])
        self.told = [row for row, (_, branch) in enumerate(owners) if not branch.quiet]
        self.quiet = [row for row, (_, branch) in enumerate(owners) if branch.quiet]
        self._quiet = quiet = [owners[row][1] for row in self.quiet]
        self._token_ids = [branch.sequence.token_ids for branch in quiet if branch.sequence]
        self._untold = [branch.untold for branch in quiet]
        self._stop_tokens = {t for each in quiet for t in each.continuation.stop_tokens}
        # Steps until one of the quiet ones is as long as it may be, and until all branches are.
        self._steps_left = min([each.most_left for each in quiet], default=0) - unread
        self.most_left = max([branch.most_left for _, branch in owners], default=0) - unread

    @property
    def all_run(self) -> bool:
        """Whether none has ended since; others may run in their place."""
        return all([branch.sequence is not None for _, branch in self.all])

    def note(self, tokens: list[int], logprobs: list[float]) -> set[int]:
        """Takes the tokens of the quiet rows; returns the rows that these end, or that are
        asked."""
        if self.told:
            tokens = [tokens[row] for row in self.quiet]
            logprobs = [logprobs[row] for row in self.quiet]
        for ids, untold, token, logprob in zip(
            self._token_ids, self._untold, tokens, logprobs, strict=True
        ):
            ids.append(token)
            untold.append(logprob)
        asked = {row for row, branch in zip(self.quiet, self._quiet, strict=True) if branch.asked}
        self._steps_left -= 1
        if self._steps_left > 0 and self._stop_tokens.isdisjoint(tokens):
            return asked
        rows = zip(self.quiet, self._quiet, tokens, strict=True)
        return asked | {row for row, branch, token in rows if branch.ends(token)}
