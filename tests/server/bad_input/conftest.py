"""A server of its own for what should not harm one: if it does, no other test is taken along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server

from tests.reference import tiny_checkpoint
from tests.server.bad_input.generator import MAX_BATCH, MAX_LENGTH, MODELS
from tests.server.bad_input.message import GrpcCaller, HttpCaller

_ARCHITECTURES = dict(
    zip(MODELS, ("bert", "bert", "electra", "roberta", "distilbert", "albert"), strict=True)
)
# Long enough for requests sent together to meet on a loaded machine.
_GATHER_US = 400_000


@pytest.fixture(scope="package")
def hostile_server(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Server]:
    """Every task once; and embed, answer, fill and a folder without tokenizer (`bare`) with
    `gather-` before their names, which wait for company so that one execution is certain."""
    root = tmp_path_factory.mktemp("hostile")
    prompt = Deployment(device=device, max_batch_size=MAX_BATCH)
    patient = Deployment(device=device, max_batch_size=64, queue_delay_us=_GATHER_US)
    for task, architecture in _ARCHITECTURES.items():
        tiny_checkpoint(root / task, architecture, task, max_length=MAX_LENGTH)
    tiny_checkpoint(root / "bare", "bert", "embed")
    for file in (root / "bare").glob("tokenizer*"):
        file.unlink()

    def add(name: str, folder: str, deployment: Deployment) -> None:
        task = folder if folder in MODELS else "embed"
        import_folder(
            root / folder,
            root / "repository",
            name=name,
            settings={"task": task, "threads": 1, "dtype": "float32"},
            deployment=deployment,
            link=True,
        )

    for task in MODELS:
        add(task, task, prompt)
    for folder in ("embed", "answer", "fill", "bare"):
        add(f"gather-{folder}", folder, patient)
    settings = ServerSettings(
        http_port=0, grpc_port=0, metrics_port=0, log_level="error", exit_timeout_s=2
    )
    with Server([Path(root / "repository")], settings) as server:
        yield server


@pytest.fixture(scope="package")
def grpc_caller(hostile_server: Server) -> Iterator[GrpcCaller]:
    caller = GrpcCaller(hostile_server.endpoint)
    yield caller
    caller.close()


@pytest.fixture(scope="package")
def http_caller(hostile_server: Server) -> Iterator[HttpCaller]:
    caller = HttpCaller(hostile_server.endpoint)
    yield caller
    caller.close()
