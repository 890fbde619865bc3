"""The base of encoders of texts and of images, which run packed batches of whole sequences."""

from __future__ import annotations

from abc import abstractmethod

from fusewire import kernels
from fusewire.models.buckets import MOST_TOKENS
from fusewire.models.model import Model

# The maximum number of rows that the head is tuned with: its products are small or, with a
# vocabulary, take much memory.
MOST_HEAD_ROWS = 1024


class WholeSequenceModel(Model):
    """A model whose forwards compute whole sequences, without a cache."""

    def tune(self, max_tokens: int = MOST_TOKENS) -> None:
        """Selects the kernels of matrix products for batches of every size up to `max_tokens`,
        where there are alternatives. They are timed, which takes seconds on a GPU where the model
        is new, or else read from the file of earlier timings. Nothing is timed later."""
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
