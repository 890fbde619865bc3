"""An encoder's scheduling without a device: requests come and micro-batches take their time by a
clock that jumps from event to event. Policy is the engine's own; only the model is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from fusewire.engine.costs import CostTable
from fusewire.engine.encoder_admission import EncoderAdmission, sum_of_squares
from fusewire.engine.expectation import Expectation
from fusewire.engine.ready_queue import ReadyQueue
from fusewire.engine.request import Request, Work
from fusewire.errors import Overloaded
from fusewire.tasks.task import Item


def table(
    fixed_s: float, token_s: float, square_s: float = 0.0, max_batch_tokens: int = 16384
) -> CostTable:
    """fixed_s + token_s * tokens + square_s * squares."""
    sizes = [1 << power for power in range(4, 15)]
    points = [(0, fixed_s), *((size, fixed_s + token_s * size) for size in sizes)]
    return CostTable(points, square_s, max_batch_tokens)


@dataclass(eq=False)
class Asked:
    """One request: `rows` sequences of `length` tokens."""

    at: float
    length: int
    rows: int = 1
    within: float | None = None  # its deadline, from when it comes
    tenant: str = ""
    priority: int = 0
    refused: Overloaded | None = None
    displaced: float | None = None  # when
    ended: float = inf

    @property
    def lengths(self) -> list[int]:
        return [self.length] * self.rows

    @property
    def in_time(self) -> bool:
        return self.ended <= self.at + (inf if self.within is None else self.within) + 1e-9


@dataclass
class Simulation:
    costs: CostTable
    max_batch_tokens: int = 16384
    max_queue_ms: float | None = None
    admits: bool = True  # else everything is taken, with no deadline known
    truth: float | Callable[[float, int], float] = 1.0  # what batches take, times what was measured
    learns: bool = False  # the cost table, of what batches take, as an engine's does
    # Of a batch's time, what passes before the next, and no batch shows.
    between: Callable[[float], float] = lambda now: 0.0
    unseen_s: float = 0.0  # of a request's time, before it comes and behind its answer
    now: float = 0.0
    busy_s: float = 0.0
    ready: ReadyQueue = field(default_factory=ReadyQueue)
    batches: list[list[Work]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = EncoderAdmission(
            self.costs, Expectation(512), None, self.max_queue_ms, lambda: self.now
        )
        self.of: dict[Work, Asked] = {}

        self._measured = deepcopy(self.costs)

    def run(self, requests: Iterable[Asked]) -> list[Asked]:
        """Until all have ended; in order of arrival."""
        coming = sorted(requests, key=lambda asked: asked.at)
        place, free_at = 0, 0.0
        running: list[Work] = []
        while place < len(coming) or running or len(self.ready):
            arrives = coming[place].at if place < len(coming) else inf
            if running and free_at <= arrives:
                self.now = free_at
                self._end(running)
                running = []
                if not len(self.ready):
                    self.admission.idle()
            elif arrives < inf:
                self.now = arrives
                self.arrive(coming[place])
                place += 1
            if not running and len(self.ready):
                self.drop_late()
                running = self.give()
                free_at = self.now + self.compute(running)
        return coming

    def compute(self, batch: Sequence[Work]) -> float:
        """Returns when the next may begin, in seconds."""
        lengths = [self.of[work].length for work in batch]
        tokens, squares = sum(lengths), sum_of_squares(lengths)
        truth = self.truth if isinstance(self.truth, float) else self.truth(self.now, tokens)
        took = truth * self._measured.seconds(tokens, squares)
        if self.learns:
            self.costs.observe(tokens, squares, took)
        took *= 1 + self.between(self.now)
        self.busy_s += took
        return took

    def drop_late(self) -> None:
        """What can no longer be in time is not computed, but for one where all are late, as in the
        engine's loop."""
        late = [work for work in self.ready if self._is_late(work)]
        if len(late) == len(self.ready):
            late = late[1:]
        for work in late:
            self.ready.remove(work)
            work.ended = True
            self.admission.release(work, answered=False)

    def _is_late(self, work: Work) -> bool:
        return work.deadline is not None and work.deadline - self.now < work.predicted_s

    def arrive(self, asked: Asked) -> None:
        inputs: dict[str, Any] = {"input_ids": np.zeros((asked.rows, asked.length), np.int64)}
        deadline = None if asked.within is None or not self.admits else self.now + asked.within
        work = Work(Request(inputs, {}, asked.priority, asked.tenant), deadline)
        try:
            displaced = self.admission.take(work)
        except Overloaded as refused:
            asked.refused = refused
            return
        for other in displaced:
            self.ready.remove(other)
            other.ended = True
            self.of[other].displaced = self.now
        self.of[work] = asked
        query: Any = None
        work.items = [Item(query, range(length)) for length in asked.lengths]
        self.admission.correct([work])
        self.ready.add(work)

    def give(self) -> list[Work]:
        """The next micro-batch, a work for each of its sequences."""
        members = self.ready.take(
            self.now, self.admission.slack_s, self.costs, self.max_batch_tokens
        )
        batch = [work for work, _ in members]
        assert batch, "the device is free, and something waits"
        self.admission.correct(set(batch))
        self.admission.begin([self.of[work].length for work in batch])
        self.batches.append(batch)
        return batch

    def _end(self, batch: Sequence[Work]) -> None:
        for work in set(batch):
            if work.given == len(work.items) and not work.ended:
                self.of[work].ended = self.now + self.unseen_s
                self.admission.release(work)
