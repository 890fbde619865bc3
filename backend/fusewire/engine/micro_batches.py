"""The micro-batches of one call, on their way through the model beside the host's own work.

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
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusewire.engine.batch import Batch
from fusewire.engine.request import Answer, Counts, Request, failure, out_of_memory
from fusewire.engine.scheduler import halves, plan
from fusewire.tasks.task import Item, Task

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models import EncoderModel

_log = logging.getLogger(__name__)

# For so long after reading, which asks whether requests were cancelled, nothing asks again before
# the first micro-batch: on a server each question is a message to its process.
_FRESH_S = 0.005


@dataclass(eq=False)
class _Given:
    """A micro-batch that the device computes, or has computed."""

    members: list[int]
    items: list[Item]
    batch: Batch
    hidden: Tensor
    computed_tokens: int
    retry: bool


class MicroBatches:
    """The sequences of one call, in order, and what came of them."""

    def __init__(
        self,
        model: EncoderModel,
        task: Task,
        requests: Sequence[Request],
        answers: list[Answer],
        counts: Counts,
        computed: Callable[[int], None] | None = None,
    ) -> None:
        """`answers` gets the errors of requests that fail here, `counts` what was done, `computed`
        the number of sequences of each micro-batch that is done."""
        self._model = model
        self._task = task
        self._requests = requests
        self._answers = answers
        self._counts = counts
        self._computed = computed
        self._items: list[Item] = []
        self._owners: list[int] = []  # each item's request
        self._results: dict[int, Any] = {}
        self._waiting: deque[tuple[list[int], bool]] = deque()  # members, whether to try again
        self._given: _Given | None = None
        self._begun = False
        self._read = time.monotonic()

    def compute(self, sequences: Sequence[tuple[int, Item]], max_batch_tokens: int) -> None:
        """Adds sequences, each with its request's index, and gives them to the device; the last
        micro-batch may be in flight on return. Never raises for a request."""
        began = time.perf_counter()
        first = len(self._items)
        self._owners += [owner for owner, _ in sequences]
        self._items += [item for _, item in sequences]
        lengths = [len(item.tokens) for _, item in sequences]
        for members in plan(lengths, max_batch_tokens):
            self._waiting.append(([first + member for member in members], True))
        while self._waiting:
            self._give(*self._waiting.popleft())
        self._counts.compute_seconds += time.perf_counter() - began

    def finish(self) -> None:
        """Waits for the micro-batch in flight."""
        began = time.perf_counter()
        while self._waiting or self._given:
            if self._waiting:
                self._give(*self._waiting.popleft())
            else:
                self._take()
        self._counts.compute_seconds += time.perf_counter() - began

    def wanted(self, requests: Iterable[int]) -> set[int]:
        """Those of the requests that neither failed meanwhile nor were cancelled."""
        ask = self._begun or time.monotonic() - self._read > _FRESH_S
        wanted = set()
        for index in requests:
            if self._answers[index] is None:
                try:
                    if not (ask and self._requests[index].cancelled()):
                        wanted.add(index)
                except Exception as error:
                    self._answers[index] = failure(error)
        return wanted

    def results(self, first: int, count: int) -> list[Any] | None:
        """What the head found for so many sequences; None when one of them was not computed."""
        members = range(first, first + count)
        if not all(member in self._results for member in members):
            return None
        return [self._results[member] for member in members]

    def _give(self, members: list[int], retry: bool) -> None:
        members = self._still_wanted(members)
        if not members:
            return
        items = [self._items[member] for member in members]
        try:
            batch = Batch.pack([item.tokens.sequence for item in items])
            self._take()
            hidden = self._model.encode(batch)
            computed = self._model.computed_tokens
            self._given = _Given(members, items, batch, hidden, computed, retry)
        except Exception as error:
            self._failed(error, members, retry)

    def _take(self) -> None:
        """Runs the head over the micro-batch in flight."""
        given, self._given = self._given, None
        if given is None:
            return
        try:
            found = self._task.head(given.hidden, given.batch, given.items)
            self._results.update(zip(given.members, found, strict=True))
        except Exception as error:
            self._failed(error, given.members, given.retry)
            return
        self._counts.sequences += len(given.members)
        self._counts.tokens += given.batch.tokens
        self._counts.padding_tokens += given.computed_tokens - given.batch.tokens
        self._counts.micro_batches += 1
        if self._computed:
            self._computed(len(given.members))

    def _failed(self, error: Exception, members: list[int], retry: bool) -> None:
        """Out of memory is tried once more in two halves, later: this error's traceback still holds
        the tensors of the first attempt. Anything else fails the requests of the micro-batch."""
        if retry and out_of_memory(error) and len(members) > 1:
            _log.warning("out of memory on %d sequences, trying again in halves", len(members))
            lengths = [len(item.tokens) for item in self._items]
            left, right = halves(members, lengths)
            self._waiting.extendleft([(right, False), (left, False)])
            return
        failed = failure(error)
        for member in members:
            self._answers[self._owners[member]] = copy(failed)

    def _still_wanted(self, members: list[int]) -> list[int]:
        wanted = self.wanted(dict.fromkeys(self._owners[member] for member in members))
        self._begun = True
        return [member for member in members if self._owners[member] in wanted]
