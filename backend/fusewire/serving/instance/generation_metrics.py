"""The metrics of a generation instance on Triton's metrics page."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fusewire.engine.generation import GenerationEngine
from fusewire.serving.instance.series import (
    QUEUE_SECONDS,
    REPLAYS,
    SECONDS_BUCKETS,
    ModelSeries,
    Sample,
    rejections,
)


class GenerationMetrics(ModelSeries):
    """The time series of one instance."""

    def __init__(
        self,
        family: Any,
        model: str,
        reloads: int,
        device: str = "cpu",
        instance: str = "",
        tenants: Collection[str] = (),
    ) -> None:
        super().__init__(family, model, "generate", reloads, device, instance, tenants)
        self._engine: GenerationEngine | None = None
        self._queue = self._histogram(*QUEUE_SECONDS)
        self._first = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token; a random sample under load",
            SECONDS_BUCKETS,
        )
        self._next = self._histogram(
            "inter_token_seconds",
            "Time between two tokens of a sequence; a random sample under load",
            SECONDS_BUCKETS,
        )
        gauges = {
            "running": ("running", "Sequences running"),
            "waiting": ("waiting", "Sequences in the queue"),
            "backlog_seconds": (
                "backlog_seconds",
                "Predicted seconds of the work that waits",
            ),
            "used": ("kv_pages_used_ratio", "Share of the KV pages in use"),
            "live_bytes": (
                "kv_bytes_per_live_token",
                "Bytes of the KV pages in use per token of the running sequences",
            ),
        }
        self._gauges = {
            key: self._gauge(name, words, instance=instance)
            for key, (name, words) in gauges.items()
        }
        counters = {
            "preemptions": (
                "preemptions_total",
                "Sequences that lost their pages to others",
            ),
            "prefix_hit_tokens": (
                "prefix_hit_tokens_total",
                "Prompt tokens found in the prefix cache",
            ),
            "step_seconds": ("step_seconds_total", "Time spent computing steps"),
            "predicted_seconds": (
                "predicted_seconds_total",
                "What the cost table predicted for the computing",
            ),
            **REPLAYS,
        }
        self._counters = {
            key: self._counter(name, words) for key, (name, words) in counters.items()
        }
        self._sent = dict.fromkeys((*self._gauges, *self._counters), 0.0)
        for metric in self._counters.values():
            metric.increment(0)
        for metric in self._gauges.values():
            metric.set(0)
        # Times to the first token, between tokens, and in the queue.
        self._firsts, self._times, self._waits = Sample(), Sample(), Sample()
        self._thread.start()

    def watch_engine(self, engine: GenerationEngine) -> None:
        """Reports on this engine from now on."""
        self._engine = engine

    def first_token(self, seconds: float) -> None:
        self._firsts.add(seconds)

    def next_token(self, seconds: float) -> None:
        self._times.add(seconds)

    def _look(self) -> None:
        super()._look()
        self._firsts.send(self._first)
        self._times.send(self._next)
        if self._engine is None:
            return
        self._count(rejections(self._engine.refused_in_front(), self._tenants))
        for seconds in self._engine.take_queue_seconds():
            self._waits.add(seconds)
        self._waits.send(self._queue)
        counts = self._engine.counts()
        now = {
            **vars(counts),
            "used": counts.used_pages / counts.pages,
            "live_bytes": counts.used_pages * counts.page_bytes / max(counts.live_tokens, 1),
        }
        changed = {key: now[key] for key, sent in self._sent.items() if now[key] != sent}
        for key, value in changed.items():
            if key in self._gauges:
                self._gauges[key].set(value)
            else:
                self._counters[key].increment(value - self._sent[key])
            self._sent[key] = value
        if changed:
            self._refresh()
