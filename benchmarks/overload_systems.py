"""The systems and the kinds of load of the overload benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fusewire.serving import model_config, repository
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.supervisor.server import Server

from benchmarks import overload_arrivals
from benchmarks.overload_arrivals import Arrival

MODEL = "model"
LONGEST_PROMPT, LONGEST_ANSWER = 512, 256  # as in generation_arrivals
_GENERATOR = MappingProxyType(
    {
        "max_sequences": 16,
        "max_length": LONGEST_PROMPT + LONGEST_ANSWER,
        "max_waiting": 1 << 20,
        "prefix_caching": False,  # the prompts are few and repeated
    }
)


class Kind(NamedTuple):
    """A kind of load: the tokens of its texts, their arrivals, whether clients retry, how many
    concurrent requests keep a server busy, and whether a model generates the answers."""

    least: int
    most: int
    arrivals: Callable[[float, float, int, int], list[Arrival]]
    retries: bool = False
    under_way: int = 64
    generates: bool = False
    # Of whole answers; generated ones get the time of the longest answer under load, and some more.
    deadline_s: float = 1.0


LOADS = {
    "48 words": Kind(50, 50, overload_arrivals.poisson),  # with two special tokens
    "lengths": Kind(5, 500, overload_arrivals.poisson, under_way=32),
    "bursts": Kind(50, 50, overload_arrivals.bursts),
    "tenants": Kind(50, 50, overload_arrivals.tenants),
    "retries": Kind(50, 50, overload_arrivals.poisson, retries=True),
    "answers": Kind(0, 0, overload_arrivals.poisson, under_way=32, generates=True, deadline_s=10.0),
    "tenants' answers": Kind(
        0, 0, overload_arrivals.tenants, under_way=32, generates=True, deadline_s=10.0
    ),
}


class System(NamedTuple):
    """How a server is configured, and how its clients behave."""

    settings: Mapping[str, object] = MappingProxyType({})
    tell_deadline: bool = False
    queue_policy: bool = False
    count: bool = False


_TAKES_ALL = MappingProxyType({"max_queue_ms": 86_400_000})  # a day
SYSTEMS = {
    "fusewire": System(tell_deadline=True),
    "fifo": System(_TAKES_ALL),
    "triton": System(_TAKES_ALL, queue_policy=True),
    "count": System(_TAKES_ALL, count=True),
}


def possible(system: str, load: str, protocol: str) -> bool:
    """Returns whether the cell can run. Triton does not batch models that generate, so its queue
    never holds waiting requests; their HTTP clients use another protocol, which is not measured."""
    return not LOADS[load].generates or (protocol == "grpc" and not SYSTEMS[system].queue_policy)


class Limits(NamedTuple):
    """The limits of a server: at most `count` requests wait in Triton's queue, for `deadline_s`,
    where the system limits it."""

    threads: int
    max_batch_size: int
    count: int
    deadline_s: float
    first_port: int = 0  # 0: any free ports


@contextmanager
def serving(folder: Path, system: System, limits: Limits, generates: bool) -> Iterator[Server]:
    """Yields a server of the model, on the CPUs of this thread."""
    settings = _GENERATOR if generates else {"task": "embed", "max_length": 512}
    batching = {} if generates else {"max_batch_size": limits.max_batch_size}
    with tempfile.TemporaryDirectory() as root:
        entry = repository.import_folder(
            folder,
            root,
            name=MODEL,
            settings={"threads": limits.threads, **settings, **system.settings},
            deployment=Deployment(device="cpu", **batching),
            link=True,
        )
        if system.queue_policy:
            config = model_config.read(entry / repository.CONFIG)
            policy = config.dynamic_batching.default_queue_policy
            policy.max_queue_size = limits.count
            policy.timeout_action = policy.REJECT
            policy.default_timeout_microseconds = int(limits.deadline_s * 1e6)
            model_config.write(config, entry / repository.CONFIG)
        http, grpc, metrics = (limits.first_port and limits.first_port + n for n in range(3))
        ports = ServerSettings(
            http_port=http, grpc_port=grpc, metrics_port=metrics, log_level="error"
        )
        with Server([Path(root)], ports, report=print) as server:
            yield server
