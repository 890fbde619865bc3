from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fusewire.engine.encoder import EncoderEngine

from tests.reference import tiny_checkpoint
from tests.tasks.deployed import Deployment


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Deployment]:
    """deploy(architecture, task, **sizes): made once for equal arguments."""
    made: dict[Any, Deployment] = {}

    def make(architecture: str, task: str, **sizes: Any) -> Deployment:
        key = (architecture, task, *sorted((name, str(value)) for name, value in sizes.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{architecture}-{task}")
            reference = tiny_checkpoint(folder, architecture, task, **sizes)
            made[key] = Deployment(folder, task, reference, EncoderEngine(folder, task))
        return made[key]

    return make
