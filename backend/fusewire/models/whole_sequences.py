"""What encoders of texts and of images share: they run packed batches of whole sequences."""

from __future__ import annotations

from abc import abstractmethod

from fusewire import kernels
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.model import Model

# Rows of a batch up to which the head is tuned: its products are small or, over a vocabulary,
# take much memory.
MOST_HEAD_ROWS = 1024


class WholeSequenceModel(Model):
    """Its forwards see every token of every sequence at once."""

    def tune(self, max_tokens: int = MOST_TOKENS) -> None:
        """Chooses the kernels of matrix products for batches of every size up to `max_tokens`,
        where there is a choice: by timing them, which takes seconds on a GPU that has not seen the
        model, else from the file of those timed before. Nothing is timed later."""
        rows = self.place.rows_to_tune(max_tokens)
        if not rows:
            return
        hidden = self.place.empty(max_tokens, self.hidden_size)
        with self.place.tuning():
            for tokens in rows:
                self._try_out(hidden.first(tokens))

    @abstractmethod
    def _try_out(self, hidden: kernels.Tensor) -> None:
        """Runs a batch of any content with as many tokens as hidden [tokens, hidden] has room for,
        and the head on as many rows, at most MOST_HEAD_ROWS."""
