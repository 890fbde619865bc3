"""The series of a generating instance, against a stand-in of Triton's metrics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from fusewire.engine.engine_counts import EngineCounts
from fusewire.engine.progress import Progress
from fusewire.errors import Cancelled, InvalidInput, QueueFull
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.series import End

from tests.serving.instance.test_metrics import Families


def counts(**values: float) -> EngineCounts:
    nothing = dict.fromkeys(EngineCounts.__dataclass_fields__, 0)
    return EngineCounts(**{**nothing, "pages": 8, **values})


def looked(families: Families, *looks: EngineCounts) -> GenerationMetrics:
    metrics = GenerationMetrics(families, "m", reloads=1, instance="m_0_0")
    left, waits = list(looks), [0.25, 0.5]
    engine = SimpleNamespace(
        counts=lambda: left.pop(0) if left[1:] else left[0],
        progress=Progress(),
        refused_in_front=lambda: {},
        take_queue_seconds=lambda: [waits.pop()] if waits else [],
    )
    metrics.watch_engine(engine)  # type: ignore[arg-type]
    for _ in looks:
        metrics._look()
    return metrics


def reported(times: int = 0) -> Families:
    families = Families()
    metrics = looked(families, counts())
    for _ in range(times):
        metrics.next_token(0.5)
    refused = [InvalidInput("n", 0, "1", "raise"), QueueFull("queue: got 3 sequences waiting")]
    metrics.ended(map(End, [{"text_output": np.zeros(1)}, Cancelled("gone"), *refused]))
    metrics.close()
    return families


def test_gauges_hold_the_last_and_counters_add_up() -> None:
    families = Families()
    metrics = looked(
        families,
        counts(running=3, waiting=2, used_pages=4, preemptions=1),
        counts(
            running=1,
            used_pages=2,
            page_bytes=64,
            live_tokens=16,
            preemptions=1,
            prefix_hit_tokens=16,
            padding_tokens=3,
            backlog_seconds=0.5,
            step_seconds=4.0,
            predicted_seconds=3.0,
        ),
    )
    metrics.first_token(2.0)
    gauges = {
        "running": 1,
        "waiting": 0,
        "kv_pages_used_ratio": 0.25,
        "kv_bytes_per_live_token": 8.0,
        "backlog_seconds": 0.5,
    }
    for name, value in gauges.items():
        assert families.value(name, model="m", task="generate", instance="m_0_0") == value, name
    metrics.close()
    for name, value in {
        "preemptions_total": 1,
        "prefix_hit_tokens_total": 16,
        "padding_tokens_total": 3,
        "step_seconds_total": 4.0,
        "predicted_seconds_total": 3.0,
        "graph_hits_total": 0,
        "model_reloads": 1,
        "time_to_first_token_seconds": 2.0,
        "queue_seconds": 0.75,
    }.items():
        assert families.value(name, model="m", task="generate") == value, name
    assert all(families.value(name, model="m") == 0 for name in gauges)


def test_requests_are_counted_by_what_became_of_them() -> None:
    families = reported()
    for outcome, count in {"ok": 1, "cancelled": 1, "rejected": 2}.items():
        assert families.value("requests_total", outcome=outcome) == count
    assert families.value("rejected_total", reason="parameter") == 1
    assert families.value("rejected_total", reason="queue") == 1


def test_of_many_times_between_tokens_some_are_sent() -> None:
    assert reported(times=10).value("inter_token_seconds") == 5.0
    assert 16.0 <= reported(times=10_000).value("inter_token_seconds") <= 64.0  # a few looks


def test_what_the_front_refuses_is_counted_as_the_instances_own() -> None:
    families = Families()
    metrics = GenerationMetrics(families, "m", reloads=1, instance="m_0_0", tenants={"blue"})
    refused = [{"blue": 3, "": 4}]
    engine = SimpleNamespace(
        counts=counts,
        progress=Progress(),
        refused_in_front=lambda: refused.pop() if refused else {},
        take_queue_seconds=list,
    )
    metrics.watch_engine(engine)  # type: ignore[arg-type]
    metrics._look()
    metrics.close()
    for kind, count in {"blue": 3, "none": 4}.items():
        labels = {"model": "m", "reason": "overload", "tenant_class": kind}
        assert families.value("rejected_total", **labels) == count
