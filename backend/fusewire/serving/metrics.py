"""The metrics of an encoder's instance on Triton's metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.engine.encoder import Answer, Counts
from fusewire.serving.series import REPLAYS, SECONDS_BUCKETS, ModelSeries, Outcomes, outcomes_of

_TOKENS_BUCKETS = [float(1 << power) for power in range(3, 16)]


class ServingMetrics(ModelSeries):
    """The series of one instance."""

    def __init__(
        self, family: Any, model: str, task: str, reloads: int, device: str = "cpu"
    ) -> None:
        super().__init__(family, model, task, reloads, device)
        counted = {"tokens": ("tokens_total", "Tokens computed, without padding")} | REPLAYS
        self._counted = {  # by the field of Counts
            field: self._counter(name, words) for field, (name, words) in counted.items()
        }
        self._tokenize = self._histogram(
            "tokenize_seconds", "Time an execution spent tokenizing", SECONDS_BUCKETS
        )
        self._compute = self._histogram(
            "compute_seconds", "Time an execution spent computing", SECONDS_BUCKETS
        )
        self._batch_tokens = self._histogram(
            "batch_tokens", "Tokens of an execution, packed", _TOKENS_BUCKETS
        )
        for metric in self._counted.values():
            metric.increment(0)
        self._thread.start()

    def record(self, answers: Sequence[Answer], counts: Counts) -> None:
        """Takes note of one execution; returns at once."""
        outcomes = outcomes_of(answers)
        self._updates.put(lambda: self._update(outcomes, counts))

    def _update(self, outcomes: Outcomes, counts: Counts) -> None:
        self._count(outcomes)
        for name, metric in self._counted.items():
            metric.increment(getattr(counts, name))
        if counts.tokens:
            self._batch_tokens.observe(counts.tokens)
            self._tokenize.observe(counts.tokenize_seconds)
            self._compute.observe(counts.compute_seconds)
        self._refresh()
