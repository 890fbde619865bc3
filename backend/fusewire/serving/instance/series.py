"""The time series that every model instance has on Triton's metrics page.

All instances of a model update the same series. Each update is a message to the server, so updates
are collected, and sent by a separate thread after the answers. The progress of the engine is
polled, also while it computes, as the watchdog reads it.
"""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from fusewire import kernels
from fusewire.engine.progress import Progress
from fusewire.errors import Cancelled, FusewireError, InvalidInput, Overloaded, Unavailable

SECONDS_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]

# Interval between polls of the engine. Each changed value is a message to the server.
_POLL_S = 0.25
# Time in which answers are collected, which are then counted with one message.
_GATHER_S = 0.02

# Keeps series and families alive as long as the process, beyond its last destructor. Triton removes
# a series with the first of its owners, and crashes when another one then writes to it: a second
# instance of the model, or the process that replaced this one (server issue 8663).
_kept: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))

# The same family for encoders and generation.
QUEUE_SECONDS = (
    "queue_seconds",
    "From a request's arrival to its first row computed, of one that generates from when it is "
    "taken to its first step; a random sample under load",
    SECONDS_BUCKETS,
)
# Counters of captured graphs, by the field of both engines' counts.
REPLAYS = {
    "padding_tokens": ("padding_tokens_total", "Padding tokens computed"),
    "graph_hits": ("graph_hits_total", "Batches that replayed a CUDA graph"),
    "graph_misses": (
        "graph_misses_total",
        "Batches small enough for a CUDA graph, but without one",
    ),
}
# Maximum number of times of requests or tokens that are sent with a poll. There may be thousands
# per second, and a random sample has the same quantiles.
_MOST_TIMES = 32
Outcomes = Counter[tuple[str, ...]]  # (counter, the values of its labels) -> requests
_OUTCOMES = {
    "requests_total": ("Requests by outcome: ok, rejected, …", ("outcome",)),
    "rejected_total": (
        "Requests rejected, by the invalid field or the lack, and by class of tenants",
        ("reason", "tenant_class"),
    ),
    "goodput_total": (
        "Requests answered within their deadline, by class of tenants",
        ("tenant_class",),
    ),
}
_NO_TENANT, _OTHER_TENANTS = "none", "other"


class End(NamedTuple):
    """The outcome of a request: outputs or an error, and whether it met its deadline, if it had
    one. `tenant`: "" without a tenant. `probe`: not counted."""

    answer: object
    tenant: str = ""
    in_time: bool = True
    probe: bool = False


class Sample:
    """Times since the last update, or a random sample of them: a reservoir (Vitter, 1985, algorithm
    R), in which each time has the same probability to be sent. Only one thread may add at a
    time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._skipped = 0

    def add(self, seconds: float) -> None:
        if len(self._times) < _MOST_TIMES:
            self._times.append(seconds)
            return
        self._skipped += 1
        place = random.randrange(_MOST_TIMES + self._skipped)
        if place < _MOST_TIMES:
            self._times[place] = seconds

    def send(self, histogram: Any) -> None:
        times, self._times, self._skipped = self._times, [], 0
        for seconds in times:
            histogram.observe(seconds)


class ModelSeries:
    """Requests by outcome, progress, memory and reloads. Subclasses add the series of their
    engine."""

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
        """`family`: Triton's MetricFamily class. `device`: where the instance computes. `instance`:
        its name, for series that cannot be added up over instances. `tenants`: those that are
        classes of their own."""
        self._family = family
        self._tenants = tenants
        self._labels = {"model": model, "task": task}
        self._device = device
        self._memory = kernels.default_allocator(device)
        self._updates: queue.SimpleQueue[Outcomes | None] = queue.SimpleQueue()  # None: the end
        self._families: dict[str, Any] = {}
        self._levels: list[Any] = []  # gauges that are set to 0 at the end
        # With a label, so that instances on several devices do not overwrite each other's values.
        self._reserved = self._gauge(
            "allocator_reserved_bytes", "Bytes taken from the system", device=device
        )
        self._allocated = self._gauge("allocator_allocated_bytes", "Bytes in use", device=device)
        self._series(
            "model_reloads", "How often the watchdog reloaded the model", family.GAUGE, {}
        ).set(reloads)
        self._progress = Progress()
        self._tokens = self._counter("tokens_total", "Tokens computed, without padding")
        self._tokens.increment(0)
        self._tokens_sent = 0
        self._due = self._series(
            "compute_due_timestamp_seconds",
            "When the work being computed is due, in Unix time; 0: there is none",
            family.GAUGE,
            {"instance": instance},
        )
        self._due.set(0)  # the previous process may have been killed while it computed
        self._due_sent: float | None = None
        self._outcomes: dict[tuple[str, ...], Any] = {}
        self._thread = threading.Thread(target=self._send, daemon=True)

    def describe(self, precision: str) -> None:
        """Reports the dtypes of computation and of weights, as `Placement.described`."""
        labels = {"device": self._device, "precision": precision}
        self._gauge("model_info", "What instances compute in; always 1", **labels).set(1)

    def watch(self, progress: Progress) -> None:
        """Reports this engine's progress from now on."""
        self._progress = progress

    def ended(self, ends: Iterable[End]) -> None:
        """Counts requests that have their last answers. Returns at once."""
        self._updates.put(outcomes_of(ends, self._tenants))

    def close(self) -> None:
        """Sends the waiting updates, and sets all gauges to 0."""
        self._updates.put(None)
        self._thread.join(timeout=5)
        for gauge in self._levels:
            gauge.set(0)

    def _counter(self, name: str, description: str, **labels: str) -> Any:
        return self._series(name, description, self._family.COUNTER, labels)

    def _gauge(self, name: str, description: str, **labels: str) -> Any:
        gauge = self._series(name, description, self._family.GAUGE, labels)
        self._levels.append(gauge)
        return gauge

    def _histogram(self, name: str, description: str, buckets: list[float]) -> Any:
        return self._series(name, description, self._family.HISTOGRAM, {}, buckets=buckets)

    def _series(
        self, name: str, description: str, kind: Any, labels: dict[str, str], **more: Any
    ) -> Any:
        if name not in self._families:
            self._families[name] = self._family(
                name=f"fusewire_{name}", description=description, kind=kind
            )
            _kept.append(self._families[name])
        series = self._families[name].Metric(labels=self._labels | labels, **more)
        _kept.append(series)
        return series

    def _count(self, outcomes: Outcomes) -> None:
        for key, count in outcomes.items():
            if key not in self._outcomes:
                name, *values = key
                description, labels = _OUTCOMES[name]
                named = dict(zip(labels, values, strict=True))
                self._outcomes[key] = self._counter(name, description, **named)
            self._outcomes[key].increment(count)

    def _refresh(self) -> None:
        """Sends the values that are polled."""
        memory = self._memory.stats()
        self._reserved.set(memory["reserved_bytes"])
        self._allocated.set(memory["allocated_bytes"])

    def _send(self) -> None:
        looked, ending = 0.0, False
        while not ending:
            outcomes: Outcomes = Counter()
            for update in self._gathered():
                ending = ending or update is None
                outcomes.update(update)
            if outcomes:
                self._count(outcomes)
            if ending or time.monotonic() - looked >= _POLL_S:
                self._look()
                looked = time.monotonic()

    def _gathered(self) -> list[Outcomes | None]:
        try:
            first = self._updates.get(timeout=_POLL_S)
        except queue.Empty:
            return []
        if first is not None:
            time.sleep(_GATHER_S)
        return [first, *(self._updates.get() for _ in range(self._updates.qsize()))]

    def _look(self) -> None:
        """Sends the engine's progress since the last call."""
        tokens, due = self._progress.tokens, self._progress.due
        if tokens != self._tokens_sent:
            self._tokens.increment(tokens - self._tokens_sent)
            self._tokens_sent = tokens
        if due != self._due_sent:
            self._due.set(0 if due is None else time.time() + due - time.monotonic())
            self._due_sent = due


def outcomes_of(ends: Iterable[End], tenants: Collection[str] = ()) -> Outcomes:
    """Returns the counts of requests by outcome. `tenants`: those that are classes of their own."""
    found: Outcomes = Counter()
    for answer, tenant, in_time, probe in ends:
        if probe:
            continue
        if isinstance(answer, Cancelled):
            found["requests_total", "cancelled"] += 1
        elif isinstance(answer, (InvalidInput, Unavailable)):
            found["requests_total", "rejected"] += 1
            found["rejected_total", _reason(answer), _class_of(tenant, tenants)] += 1
        elif isinstance(answer, FusewireError):
            found["requests_total", "failed"] += 1
        else:
            found["requests_total", "ok"] += 1
            found["goodput_total", _class_of(tenant, tenants)] += in_time
    return found


def rejections(refused: Mapping[str, int], tenants: Collection[str] = ()) -> Outcomes:
    """Returns the counts of requests that were refused because they could not be answered in time.
    `refused`: their number by tenant."""
    found: Outcomes = Counter()
    for tenant, requests in refused.items():
        found["requests_total", "rejected"] += requests
        found["rejected_total", Overloaded.reason, _class_of(tenant, tenants)] += requests
    return found


def _class_of(tenant: str, tenants: Collection[str]) -> str:
    """Returns the class in which a tenant is counted. Clients choose the names of tenants, and
    these must not multiply series."""
    return tenant if tenant in tenants else _OTHER_TENANTS if tenant else _NO_TENANT


def _reason(error: InvalidInput | Unavailable) -> str:
    """Returns the invalid field. Clients choose the names of parameters, and these must not
    multiply series."""
    if isinstance(error, Unavailable):
        return error.reason
    return error.field if error.field in _KNOWN_FIELDS else "parameter"


_KNOWN_FIELDS = frozenset(
    (
        "text_input",
        "text_pair",
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "sampling_parameters",
        "exclude_input_in_output",
    )
)
