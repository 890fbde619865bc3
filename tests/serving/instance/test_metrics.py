"""The series of a model instance, against a stand-in of Triton's metrics."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from fusewire import kernels
from fusewire.engine.encoder import Counts
from fusewire.engine.progress import Progress
from fusewire.errors import Cancelled, ComputeFailed, DeadlineExceeded, Overloaded, QueueFull
from fusewire.serving.instance.metrics import ServingMetrics
from fusewire.serving.instance.series import End, Sample

ANSWER: dict[str, Any] = {}


class Series:
    def __init__(self) -> None:
        self.value = 0.0

    def increment(self, value: float) -> None:
        self.value += value

    observe = increment

    def set(self, value: float) -> None:
        self.value = value


class Families:
    """Triton's MetricFamily, and all the series made of it."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self) -> None:
        self.series: dict[tuple[str, frozenset[tuple[str, str]]], Series] = {}

    def __call__(self, name: str, description: str, kind: int) -> Any:
        families = self

        class Family:
            def Metric(self, labels: dict[str, str], buckets: Any = None) -> Series:
                return families.series.setdefault((name, frozenset(labels.items())), Series())

        assert description
        return Family()

    def value(self, name: str, **labels: str) -> float:
        """Of one series, which there is."""
        (found,) = self._values(name, labels)
        return found

    def total(self, name: str, **labels: str) -> float:
        return sum(self._values(name, labels))

    def _values(self, name: str, labels: dict[str, str]) -> list[float]:
        return [
            series.value
            for (of, its), series in list(self.series.items())
            if of == f"fusewire_{name}" and labels.items() <= dict(its).items()
        ]


def test_what_an_instance_computes_in_is_a_label_until_it_ends() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0, "cpu")
    metrics.describe("float32 (int8 weights)")
    labels = {"model": "m", "device": "cpu", "precision": "float32 (int8 weights)"}
    assert families.value("model_info", **labels) == 1
    metrics.close()
    assert families.value("model_info", **labels) == 0


def test_what_executions_did_is_added_up() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", reloads=2)
    assert families.value("padding_tokens_total", model="m", task="embed") == 0
    assert families.value("graph_hits_total") == families.value("graph_misses_total") == 0
    counts = Counts(sequences=3, tokens=100, padding_tokens=4, graph_hits=2, graph_misses=1)
    for answers in ([ANSWER, Cancelled("gone")], [ANSWER]):
        metrics.record(counts)
        metrics.ended(map(End, answers))
    metrics.close()
    for name, value in {
        "padding_tokens_total": 8,
        "graph_hits_total": 4,
        "graph_misses_total": 2,
        "batch_tokens": 200,
        "model_reloads": 2,
    }.items():
        assert families.value(name, model="m", task="embed") == value, name
    assert families.value("requests_total", outcome="ok") == 2
    assert families.value("requests_total", outcome="cancelled") == 1


def test_the_progress_of_an_engine_is_shown_while_it_computes() -> None:
    families = Families()
    progress = Progress()
    metrics = ServingMetrics(families, "m", "embed", 0, instance="m_0_1")
    metrics.watch(progress)

    def due() -> float:
        return families.value("compute_due_timestamp_seconds", model="m", instance="m_0_1")

    assert families.value("tokens_total", model="m", task="embed") == due() == 0
    progress.begin(100)
    metrics._look()
    assert due() == pytest.approx(time.time() + progress.limit_s(100), abs=5)
    progress.end(100)
    progress.begin(50)
    metrics._look()
    assert families.value("tokens_total", model="m", task="embed") == 100
    progress.end(50)
    metrics.close()
    assert families.value("tokens_total", model="m", task="embed") == 150
    assert due() == 0


def test_the_time_until_requests_are_computed_and_what_that_should_take_are_added_up() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0)
    metrics.record(Counts(tokens=8, predicted_seconds=0.5, queue_seconds=[0.25, 0.5]))
    metrics.record(Counts(tokens=8, predicted_seconds=0.25, queue_seconds=[1.0]))
    metrics.close()
    assert families.value("predicted_seconds_total", model="m") == 0.75
    assert families.value("queue_seconds", model="m") == 1.75


def test_what_waits_for_an_engine_is_shown_until_nothing_does() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0, instance="m_0_1")
    engine = SimpleNamespace(backlog_s=2.5, refused_in_front=dict)
    metrics.watch_engine(engine)

    def shown() -> float:
        return families.value("backlog_seconds", model="m", instance="m_0_1")

    metrics._look()
    assert shown() == 2.5
    engine.backlog_s = 0.0
    metrics._look()
    assert shown() == 0
    engine.backlog_s = 1.0
    metrics.close()
    assert shown() == 0


def test_what_the_front_refuses_is_counted_as_the_instances_own() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0, tenants={"blue"})
    refused = [{"blue": 3, "red": 2, "": 4}, {"blue": 1}]
    metrics.watch_engine(
        SimpleNamespace(backlog_s=0.0, refused_in_front=lambda: refused.pop(0) if refused else {})
    )
    metrics._look()
    metrics.close()
    counts = {"blue": 4, "other": 2, "none": 4}
    for kind, count in counts.items():
        labels = {"model": "m", "reason": "overload", "tenant_class": kind}
        assert families.value("rejected_total", **labels) == count
    assert families.value("requests_total", model="m", outcome="rejected") == 10


def test_refusals_have_their_reasons() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0)
    late = DeadlineExceeded("timeout: got")
    metrics.ended(map(End, [Overloaded("queue: got 3 s", 3.0)] * 2 + [late]))
    metrics.ended([End(QueueFull("queue: got 9"))])
    metrics.close()
    found = {reason: families.value("rejected_total", reason=reason) for reason in
             ("overload", "deadline", "queue")}  # fmt: skip
    assert found == {"overload": 2, "deadline": 1, "queue": 1}


def test_goodput_is_what_was_answered_in_time() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0)
    metrics.ended([End(ANSWER), End(ANSWER, in_time=False), End(Cancelled("gone"))])
    metrics.ended([End(ANSWER), End(ComputeFailed("compute: got")), End(QueueFull("queue: got"))])
    metrics.close()
    assert families.value("goodput_total", model="m", tenant_class="none") == 2
    assert families.value("requests_total", outcome="ok") == 3


def test_tenants_are_counted_by_class_however_many_names_clients_invent() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0, tenants={"blue", "green"})
    for number in range(1000):
        metrics.ended([End(ANSWER, f"invented-{number}"), End(QueueFull("q: got"), f"{number}")])
    metrics.ended([End(ANSWER, "blue"), End(QueueFull("queue: got 9"), "green"), End(ANSWER)])
    metrics.close()
    for tenant_class, count in {"blue": 1, "other": 1000, "none": 1}.items():
        assert families.value("goodput_total", tenant_class=tenant_class) == count
    for tenant_class, count in {"green": 1, "other": 1000}.items():
        assert families.value("rejected_total", tenant_class=tenant_class) == count
    assert len([name for name, _ in families.series if name == "fusewire_goodput_total"]) == 3


def test_of_many_times_a_random_share_is_sent() -> None:
    histogram = Series()
    sent: list[float] = []
    histogram.observe = sent.append  # type: ignore[method-assign]
    sample = Sample()
    for each in range(3200):
        sample.add(float(each))
    sample.send(histogram)
    assert len(sent) == len(set(sent)) == 32
    assert min(sent) < 1600 < max(sent)
    sample.send(histogram)
    assert len(sent) == 32


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_memory_is_that_of_the_device_in_use(device: str) -> None:
    held = kernels.default_allocator(device).allocate(1 << 20)
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", 0, device)
    metrics._update(Counts())
    stats = kernels.default_allocator(device).stats()
    for name in ("reserved", "allocated"):
        value = families.value(f"allocator_{name}_bytes", model="m", device=device)
        assert value == stats[f"{name}_bytes"] >= held.nbytes
    metrics.close()
    for name in ("reserved", "allocated"):
        assert families.value(f"allocator_{name}_bytes", model="m", device=device) == 0


def test_the_server_keeps_every_series_of_an_instance_that_ended() -> None:
    families = Families()
    metrics = ServingMetrics(families, "m", "embed", reloads=0)
    metrics.record(Counts(tokens=1))
    metrics.ended([End(ANSWER)])
    metrics.close()
    made = [weakref.ref(series) for series in families.series.values()]
    families.series.clear()
    del metrics
    gc.collect()
    assert made
    assert all(series() is not None for series in made)
