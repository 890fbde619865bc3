"""The overhead of serving on a GPU: BERT-base in fp16 on the real embedded Triton, with requests
over gRPC.

Requests of 64 sequences of 25 to 128 tokens, as ids and as texts, from as many client processes as
there are concurrent requests. They are compared with the engine alone (`EncoderEngine.answer`, with
one or two requests per call, whichever is faster), in its own process, taking turns with each
server.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine, served_seconds
from benchmarks.encoder import minilm_folder
from benchmarks.gpu.workload import SIZES, Size
from benchmarks.records import Rows
from benchmarks.served_requests import Case, Texts
from benchmarks.served_sides import Side, Window, client_side, engine_side

if TYPE_CHECKING:
    from fusewire.serving.supervisor.server import Server

MODEL = "bert"
WARM_S = 0.5  # of load before each window


@dataclass(frozen=True)
class Setup:
    """What is served, and the requests that it gets."""

    device: str = "cuda"
    size: Size = SIZES["base"]
    sequences: int = 64  # of a request
    lengths: tuple[int, int] = (25, 128)  # tokens, uniform
    requests: int = 16  # different ones
    instances: tuple[int, ...] = (1, 2)
    under_way: tuple[int, ...] = (2, 4, 8)
    seconds: float = 2.0  # of each window


def run(
    options: argparse.Namespace, facts: dict[str, Any], setup: Setup | None = None
) -> Iterator[Rows]:
    """Yields one row at a time, for each form of requests, number of instances, and number of
    concurrent requests."""
    check_packages()
    setup = setup or Setup()
    facts = facts | {"versions": facts["versions"] | _versions(), "benchmark": "served"}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_checkpoint(folder, setup.size)
        cases = cases_of(folder, setup)
        engine = stack.enter_context(_engine(folder, setup))
        for instances in setup.instances:
            for row in _with_instances(instances, cases, engine, folder, setup):
                yield [facts | {"model": setup.size.name, "system": "fusewire", **row}]


def write_checkpoint(folder: Path, size: Size) -> None:
    """Writes random weights, and the tokenizer of MiniLM, which has BERT's vocabulary."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.BertConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
    )
    model: Any = transformers.BertModel(config)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder() / name, folder / name)


def cases_of(folder: Path, setup: Setup) -> list[Case]:
    """Returns the same sequences as ids and as texts, with one request per call of the engine."""
    rows = setup.sequences
    texts, ids = Texts(folder).some(setup.requests * rows, *setup.lengths)
    return [Case(form, texts, ids, form == "ids", rows, 1, rows) for form in ("ids", "texts")]


def _with_instances(
    instances: int, cases: list[Case], engine: Side, folder: Path, setup: Setup
) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_server(folder, instances, setup))
        at = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
        clients = [
            stack.enter_context(Side(f"client {number}", client_side, at, MODEL))
            for number in range(max(setup.under_way))
        ]
        for case in cases:
            own = {
                a_call: _engine_tokens_per_s(engine, replace(case, a_call=a_call), setup)
                for a_call in (case.size, 2 * case.size)
            }
            fastest = max(own, key=lambda a_call: own[a_call])
            for client in clients:
                client.send(case)
            for client in clients:
                client.receive()
            for under_way in setup.under_way:
                served, spent = _served(clients[:under_way], server, setup)
                yield {
                    "case": f"{case.name}, {instances} x {under_way}",
                    "form": case.name,
                    "sequences": case.size,
                    "lengths": setup.lengths,
                    "instances": instances,
                    "under_way": under_way,
                    "engine_tokens_per_s": round(own[fastest], 1),
                    "engine_sequences_a_call": fastest,
                    "served_tokens_per_s": round(served, 1),
                    "served_over_engine": round(served / own[fastest], 3),
                    **served_seconds.row(spent, setup.seconds, case.size, instances),
                }


def _engine_tokens_per_s(engine: Side, case: Case, setup: Setup) -> float:
    engine.prepare(case)
    engine.begin(_window(setup))
    return engine.receive() / setup.seconds


def _served(
    clients: list[Side], server: Server, setup: Setup
) -> tuple[float, served_seconds.Seconds]:
    """Returns the tokens/s of all clients together, and the CPU seconds of the server and of the
    clients meanwhile."""

    def so_far() -> served_seconds.Seconds:
        cpu_client = sum(machine.cpu_s(client.pid) for client in clients)
        return {"cpu_client": cpu_client, **served_seconds.so_far(server, MODEL)}

    window = _window(setup)
    spent: served_seconds.Seconds = {}
    for number, client in enumerate(clients):
        client.begin(replace(window, first=number * setup.requests // len(clients)))
    time.sleep(max(0.0, window.begin - time.perf_counter()))
    before = so_far()
    time.sleep(max(0.0, window.end - time.perf_counter()))
    served_seconds.add_since(before, so_far(), spent)
    return sum(client.receive() for client in clients) / setup.seconds, spent


def _window(setup: Setup) -> Window:
    begin = time.perf_counter() + WARM_S
    return Window(begin, begin + setup.seconds)


def _engine(folder: Path, setup: Setup) -> Side:
    from fusewire.settings import EngineSettings

    return Side("engine", engine_side, str(folder), EngineSettings(), setup.device)


def _server(folder: Path, instances: int, setup: Setup) -> Server:
    from fusewire.serving.config import Deployment, ServerSettings
    from fusewire.serving.supervisor.server import Server

    return Server(
        [f"{MODEL}={folder}"],
        ServerSettings(http_port=0, grpc_port=0, metrics_port=0),
        model_settings={"task": "embed"},
        deployment=Deployment(device=setup.device, instances=instances),
        report=print,
    )


def check_packages() -> None:
    """Raises SystemExit that names what is missing, before anything is built."""
    if importlib.util.find_spec("tritonclient") is None:
        raise SystemExit("served: tritonclient is not installed; pip install ./client")
    from fusewire.errors import ConfigurationError
    from fusewire.serving.installation import find

    try:
        find()
    except ConfigurationError as error:
        raise SystemExit(f"served: {error}") from None


def _versions() -> dict[str, str]:
    return {name: machine.version_of(name) for name in ("nvidia-pytriton", "tritonclient")}
