"""What a large request leaves in /dev/shm is given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import memory
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.server.asking import Asker, ids, texts, until

LARGE = "word " * (8 << 20)  # 40 MiB


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def server(tiny: Callable[..., Path], tmp_path: Path) -> Iterator[Server]:
    import_folder(
        tiny("bert", "embed"),
        tmp_path,
        name="embed",
        settings={"dtype": "float32"},
        deployment=Deployment(device="cpu"),
        link=True,
    )
    settings = ServerSettings(http_port=0, grpc_port=0, metrics_port=0, watch_interval_s=0.2)
    with Server([tmp_path], settings, report=print) as server:
        yield server


def shared_bytes(server: Server) -> int:
    return sum(memory.resident(stub.pid).shared_bytes for stub in server.process.stubs())


def test_an_idle_model_gives_back_what_a_large_request_took(server: Server) -> None:
    until(lambda: server.watchdog._shared_memory._first)
    before = shared_bytes(server)
    with Asker(server) as asker:
        with pytest.raises(InferenceServerException, match="text_input: got"):
            asker.ask("embed", texts(LARGE))
        assert shared_bytes(server) > before + (32 << 20)
        until(lambda: server.watchdog.reloads == 1)
        until(lambda: shared_bytes(server) < before + (8 << 20))
        assert asker.ask("embed", ids([5, 6, 7]))
        until(lambda: len(server.process.stubs()) == 1)
    assert server.watchdog.reloads == 1
