"""What the overload benchmark serves, how, and to whom: the systems and the kinds of load."""

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
LONGEST_PROMPT, LONGEST_ANSWER = 512, 256  # as of generation_arrivals
_GENERATOR = MappingProxyType(
    {
        "max_sequences": 16,
        "max_length": LONGEST_PROMPT + LONGEST_ANSWER,
        "max_waiting": 1 << 20,
        "prefix_caching": False,  # the prompts are few, and come again
    }
)


class Kind(NamedTuple):
    """A kind of load: tokens of its texts, when they come, whether clients try again, requests that
    keep a server busy when they are under way, and whether a model generates its answers."""

    least: int
    most: int
    arrivals: Callable[[float, float, int, int], list[Arrival]]
    retries: bool = False
    under_way: int = 64
    generates: bool = False
    # Of whole answers; of generated ones as long as the longest takes among others, and some more.
    deadline_s: float = 1.0


LOADS = {
    "48 words": Kind(50, 50, overload_arrivals.poisson),  # and two special tokens
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
    """How a server is set up, and what its clients do."""

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
    """Triton batches nothing for models that generate, so that its queue never holds what waits;
    over HTTP their clients have a protocol of its own, which is not measured."""
    return not LOADS[load].generates or (protocol == "grpc" and not SYSTEMS[system].queue_policy)


class Limits(NamedTuple):
    """Of a server: `count` requests wait at most in Triton's queue, where the system limits it,
    and `deadline_s` long."""

    threads: int
    max_batch_size: int
    count: int
    deadline_s: float
    first_port: int = 0  # 0: any free ones


@contextmanager
def serving(folder: Path, system: System, limits: Limits, generates: bool) -> Iterator[Server]:
    """A server of the model, on the cores of this thread."""
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
