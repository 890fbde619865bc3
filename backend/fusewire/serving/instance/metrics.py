"""The metrics of an encoder instance on Triton's metrics page."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from fusewire.engine.encoder import Counts
from fusewire.serving.instance.series import (
    QUEUE_SECONDS,
    REPLAYS,
    SECONDS_BUCKETS,
    ModelSeries,
    Outcomes,
    Sample,
    rejections,
)

_COSTS = {
    "predicted_seconds": (
        "predicted_seconds_total",
        "What the cost table predicted for the computing",
    )
}
_TOKENS_BUCKETS = [float(1 << power) for power in range(3, 16)]


class Waiting(Protocol):
    """An engine that reports its waiting work."""

    @property
    def backlog_s(self) -> float: ...
    def refused_in_front(self) -> Mapping[str, int]:
        """Returns, by tenant, how many requests the server has refused before this engine since the
        last call."""


class ServingMetrics(ModelSeries):
    """The time series of one instance."""

    def __init__(
        self,
        family: Any,
        model: str,
        task: str,
        reloads: int,
        device: str = "cpu",
        instance: str = "",
        tenants: Collection[str] = (),
    ) -> None:
        super().__init__(family, model, task, reloads, device, instance, tenants)
        self._counted = {  # field of Counts -> counter
            field: self._counter(name, words) for field, (name, words) in (REPLAYS | _COSTS).items()
        }
        self._batches: deque[Counts] = deque()
        self._tokenize = self._histogram(
            "tokenize_seconds", "Time spent tokenizing the texts of a batch", SECONDS_BUCKETS
        )
        self._compute = self._histogram(
            "compute_seconds", "Time spent computing a batch", SECONDS_BUCKETS
        )
        self._batch_tokens = self._histogram(
            "batch_tokens", "Tokens of a batch, packed", _TOKENS_BUCKETS
        )
        self._queue = self._histogram(*QUEUE_SECONDS)
        self._waits = Sample()
        self._backlog = self._gauge(
            "backlog_seconds", "Predicted seconds of the work that waits", instance=instance
        )
        self._backlog_sent = 0.0
        self._engine: Waiting | None = None
        for metric in self._counted.values():
            metric.increment(0)
        self._thread.start()

    def watch_engine(self, engine: Waiting) -> None:
        """Reports on this engine from now on."""
        self._engine = engine

    def record(self, counts: Counts) -> None:
        """Records what was computed. Returns at once."""
        self._batches.append(counts)  # sent with the outcomes, or with the next poll

    def _count(self, outcomes: Outcomes) -> None:
        self._count_batches()  # before the requests for which they were computed
        super()._count(outcomes)

    def _look(self) -> None:
        super()._look()
        self._count_batches()
        self._waits.send(self._queue)
        if self._engine is not None:
            self._count(rejections(self._engine.refused_in_front(), self._tenants))
        backlog_s = self._engine.backlog_s if self._engine is not None else 0.0
        if backlog_s != self._backlog_sent:
            self._backlog.set(backlog_s)
            self._backlog_sent = backlog_s

    def _count_batches(self) -> None:
        while self._batches:
            self._update(self._batches.popleft())

    def _update(self, counts: Counts) -> None:
        for name, metric in self._counted.items():
            metric.increment(getattr(counts, name))
        for seconds in counts.queue_seconds:
            self._waits.add(seconds)
        if counts.tokens:
            self._batch_tokens.observe(counts.tokens)
            self._tokenize.observe(counts.tokenize_seconds)
            self._compute.observe(counts.compute_seconds)
        self._refresh()
