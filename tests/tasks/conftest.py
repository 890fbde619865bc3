from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fusewire import kernels
from fusewire.engine.encoder import EncoderEngine

from tests.reference import tiny_checkpoint
from tests.tasks.deployed import Deployment


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Deployment]:
    """deploy(architecture, task, **sizes): the deployment, created once for equal arguments."""
    made: dict[Any, Deployment] = {}

    def make(architecture: str, task: str, **sizes: Any) -> Deployment:
        key = (architecture, task, *sorted((name, str(value)) for name, value in sizes.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{architecture}-{task}")
            reference = tiny_checkpoint(folder, architecture, task, **sizes)
            made[key] = Deployment(folder, task, reference, EncoderEngine(folder, task))
        return made[key]

    return make


@pytest.fixture(scope="module", autouse=True)
def _one_thread_each() -> Iterator[None]:
    """Runs tiny models on one thread: torch's and our threads would only compete for the cores."""
    before = torch.get_num_threads(), kernels.num_threads()
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    kernels.set_num_threads(before[1])
