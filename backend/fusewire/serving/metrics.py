"""fusewire's metrics on Triton's metrics page.

Every instance of a model feeds the same series. Updates cost a message to the server each, so they
are gathered over an execution and sent by a thread of their own, after the answers.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusewire import kernels
from fusewire.engine.encoder import Answer, Counts
from fusewire.errors import FusewireError, InvalidInput

_SECONDS_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]
_TOKENS_BUCKETS = [float(1 << power) for power in range(3, 16)]


class ServingMetrics:
    """The series of one model instance."""

    def __init__(
        self, family: Any, model: str, task: str, reloads: int, device: str = "cpu"
    ) -> None:
        """`family`: Triton's MetricFamily class. `device`: where the instance computes."""
        self._labels = {"model": model, "task": task}
        self._memory = kernels.default_allocator(device)
        self._updates: queue.SimpleQueue[tuple[Counter[str], Counts] | None] = queue.SimpleQueue()

        # Triton wants a family to outlive its series.
        self._families: list[Any] = []

        def new(name: str, description: str, kind: Any) -> Any:
            made = family(name=f"fusewire_{name}", description=description, kind=kind)
            self._families.append(made)
            return made

        def counter(name: str, description: str) -> Any:
            return new(name, description, family.COUNTER)

        def gauge(name: str, description: str) -> Any:
            return new(name, description, family.GAUGE)

        def histogram(name: str, description: str, buckets: list[float]) -> Any:
            made = new(name, description, family.HISTOGRAM)
            return made.Metric(labels=self._labels, buckets=buckets)

        self._requests = counter("requests_total", "Requests by outcome: ok, rejected, …")
        self._rejected = counter("rejected_total", "Requests refused, by the field at fault")
        counters = {
            "tokens": counter("tokens_total", "Tokens computed, without padding"),
            "padding_tokens": counter("padding_tokens_total", "Padding tokens computed"),
            "graph_hits": counter("graph_hits_total", "Batches that replayed a recorded forward"),
            "graph_misses": counter(
                "graph_misses_total", "Batches small enough for a recorded forward that found none"
            ),
        }
        self._counted = {  # by the field of Counts
            name: each.Metric(labels=self._labels) for name, each in counters.items()
        }
        self._tokenize = histogram(
            "tokenize_seconds", "Time an execution spent tokenizing", _SECONDS_BUCKETS
        )
        self._compute = histogram(
            "compute_seconds", "Time an execution spent computing", _SECONDS_BUCKETS
        )
        self._batch_tokens = histogram(
            "batch_tokens", "Tokens of an execution, packed", _TOKENS_BUCKETS
        )
        # Instances on several devices must not overwrite each other's.
        here = self._labels | {"device": device}
        self._reserved = gauge("allocator_reserved_bytes", "Bytes taken from the system").Metric(
            labels=here
        )
        self._allocated = gauge("allocator_allocated_bytes", "Bytes in use").Metric(labels=here)
        self._reloads = gauge("model_reloads", "How often the watchdog reloaded the model").Metric(
            labels=self._labels
        )
        self._reloads.set(reloads)
        self._series: dict[str, Any] = {}
        for metric in self._counted.values():
            metric.increment(0)
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def record(self, answers: Sequence[Answer], counts: Counts) -> None:
        """Takes note of one execution; returns at once."""
        outcomes: Counter[str] = Counter()
        for answer in answers:
            if answer is None:
                outcomes["cancelled"] += 1
            elif isinstance(answer, InvalidInput):
                outcomes["rejected"] += 1
                outcomes[f"field:{_reason(answer)}"] += 1
            else:
                outcomes["failed" if isinstance(answer, FusewireError) else "ok"] += 1
        self._updates.put((outcomes, counts))

    def close(self) -> None:
        """Sends what is waiting."""
        self._updates.put(None)
        self._thread.join(timeout=5)

    def _send(self) -> None:
        while (update := self._updates.get()) is not None:
            outcomes, counts = update
            for outcome, count in outcomes.items():
                self._outcome(outcome).increment(count)
            for name, metric in self._counted.items():
                metric.increment(getattr(counts, name))
            if counts.tokens:
                self._batch_tokens.observe(counts.tokens)
                self._tokenize.observe(counts.tokenize_seconds)
                self._compute.observe(counts.compute_seconds)
            memory = self._memory.stats()
            self._reserved.set(memory["reserved_bytes"])
            self._allocated.set(memory["allocated_bytes"])

    def _outcome(self, outcome: str) -> Any:
        if outcome not in self._series:
            kind, _, field = outcome.partition(":")
            if field:
                metric = self._rejected.Metric(labels=self._labels | {"reason": field})
            else:
                metric = self._requests.Metric(labels=self._labels | {"outcome": kind})
            self._series[outcome] = metric
        return self._series[outcome]


def _reason(error: InvalidInput) -> str:
    """The field at fault; a parameter's name is the client's own, and series must not multiply."""
    return error.field if error.field in _KNOWN_FIELDS else "parameter"


_KNOWN_FIELDS = frozenset(
    ("text_input", "text_pair", "input_ids", "attention_mask", "token_type_ids")
)
