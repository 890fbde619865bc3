"""Micro-batches on their way through the model, beside the host's own work.

`encode` gives a device its work and returns; the head waits for it. So a micro-batch's head runs
only when the next one is packed and ready to be given: until then the host has tokenised and packed
while the device computed. The head comes before the next `encode`, because hidden states of a
replayed forward hold no longer. (On the CPU work is done when `encode` returns; there the order
makes no difference.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.engine.costs import CostTable
from fusewire.engine.progress import Progress
from fusewire.engine.request import Counts, Member, failure
from fusewire.engine.scheduler import halves, plan
from fusewire.errors import ComputeFailed
from fusewire.tasks.task import Task

if TYPE_CHECKING:
    from fusewire.models import EncoderModel, ImageTextModel
    from fusewire.models.task_heads import TaskHead

_log = logging.getLogger(__name__)

_NOT_FINITE = (
    "compute: got results that are NaN or infinite, wanted finite ones; use another dtype or other "
    "inputs, or report the model"
)


@dataclass(eq=False)
class _Given:
    """A micro-batch that the device computes, or has computed."""

    members: list[Member]
    batch: Any  # what Task.pack made
    hidden: Any  # what the model made of it
    computed_tokens: int
    squares: float  # the sum of squared lengths
    retry: bool


class MicroBatches:
    """Computes sequences of any requests. One thread at a time."""

    def __init__(
        self,
        model: EncoderModel | ImageTextModel,
        task: Task,
        head: TaskHead,
        progress: Progress,
        computed: Callable[[int], None] | None = None,
        costs: CostTable | None = None,
    ) -> None:
        """`progress` gets what is being done; `computed`: called with the number of sequences of
        each micro-batch, when it is done. `costs` are corrected by what it took."""
        self._model = model
        self._task = task
        self._head = head
        self._progress = progress
        self._computed = computed
        self._waiting: deque[tuple[list[Member], bool]] = deque()  # and whether to try again
        self._given: _Given | None = None
        self._costs = costs or CostTable()
        self._free_since = 0.0  # when the device was done, or began, with what was before
        self.counts = Counts()  # of what was done since `take_counts`
        self._replays = model.replay_counts

    def compute(self, members: Sequence[Member], max_batch_tokens: int) -> None:
        """Gives sequences to the device; the last micro-batch may be in flight on return. Their
        results, or an error as answer, are in their Work when it is done. Never raises."""
        began = time.perf_counter()
        if self._given is None:
            self._free_since = began
        lengths = [len(work.items[place].tokens) for work, place in members]
        for batch in plan(lengths, max_batch_tokens):
            self._waiting.append(([members[index] for index in batch], True))
        while self._waiting:
            self._give(*self._waiting.popleft())
        self.counts.compute_seconds += time.perf_counter() - began

    def finish(self) -> None:
        """Waits for the micro-batch in flight."""
        began = time.perf_counter()
        while self._waiting or self._given:
            if self._waiting:
                self._give(*self._waiting.popleft())
            else:
                self._take()
        self.counts.compute_seconds += time.perf_counter() - began

    def take_counts(self) -> Counts:
        """What was done since the last call."""
        counts, self.counts = self.counts, Counts()
        before, self._replays = self._replays, self._model.replay_counts
        counts.graph_hits, counts.graph_misses = (
            now - then for now, then in zip(self._replays, before, strict=True)
        )
        return counts

    def _give(self, members: list[Member], retry: bool) -> None:
        members = [(work, place) for work, place in members if work.answer is None]
        if not members:
            return
        try:
            batch = self._task.pack([work.items[place] for work, place in members])
            self._take()
            self._progress.begin(batch.tokens)
            hidden = self._model.encode(batch)
            computed = self._model.computed_tokens
            squares = sum(float(len(work.items[at].tokens)) ** 2 for work, at in members)
            self._given = _Given(members, batch, hidden, computed, squares, retry)
            if retry:  # for the first time
                now = time.monotonic()
                waits = [now - work.arrived for work, place in members if place == 0]
                self.counts.queue_seconds += waits
        except Exception as error:
            self._failed(error, members, retry)

    def _take(self) -> None:
        """Runs the head over the micro-batch in flight."""
        given, self._given = self._given, None
        if given is None:
            return
        try:
            options = [
                self._task.head_options(work.items[place].query.settings)
                for work, place in given.members
            ]
            found = self._head(given.hidden, given.batch, options)
            for (work, place), result in zip(given.members, found, strict=True):
                work.results[place] = result
                if not _is_finite(result):
                    work.answer = work.answer or ComputeFailed(_NOT_FINITE)
        except Exception as error:
            self._failed(error, given.members, given.retry)
            return
        self._progress.end(given.batch.tokens)
        now = time.perf_counter()
        tokens, squares = given.batch.tokens, given.squares
        self.counts.predicted_seconds += self._costs.seconds(tokens, squares)
        # Its turn, with what the host did for it: that is what those after it wait for.
        self._costs.observe(tokens, squares, now - self._free_since)
        self._free_since = now
        self.counts.sequences += len(given.members)
        self.counts.tokens += given.batch.tokens
        self.counts.padding_tokens += given.computed_tokens - given.batch.tokens
        self.counts.micro_batches += 1
        if self._computed:
            self._computed(len(given.members))

    def _failed(self, error: Exception, members: list[Member], retry: bool) -> None:
        """Handles an error. Out of memory is tried once more in two halves, later: this error's
        traceback still holds the tensors of the first attempt. Anything else fails the requests of
        the micro-batch."""
        self._progress.fail()
        if retry and isinstance(error, MemoryError) and len(members) > 1:
            _log.warning("out of memory on %d sequences, trying again in halves", len(members))
            lengths = [len(work.items[place].tokens) for work, place in members]
            left, right = halves(range(len(members)), lengths)
            for half in (right, left):
                self._waiting.appendleft(([members[index] for index in half], False))
            return
        failed = failure(error)
        for work, _ in members:
            if work.answer is None:
                work.answer = copy(failed)


def _is_finite(result: Any) -> bool:
    """Whether what a head gives for a sequence, an array or several, is finite."""
    arrays = result if isinstance(result, tuple) else (result,)
    return all(np.isfinite(array).all() for array in arrays)
