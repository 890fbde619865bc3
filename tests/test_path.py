"""The files that CONTRIBUTING names are the path of a request to embed."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import fusewire
import numpy as np
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.engine.encoder_loop import EncoderLoop
from fusewire.serving.instance.metrics import ServingMetrics
from fusewire.serving.instance.role import Role

from tests.reference import tiny_checkpoint
from tests.serving.instance.incoming import Client
from tests.serving.instance.test_metrics import Families

MOST_FILES = 12
PACKAGE = Path(fusewire.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"


def named() -> list[str]:
    """Returns the Python files of the path: Triton's own, then those of the package."""
    section = CONTRIBUTING.read_text().split("## The path of a request")[1].split("Then in C++")[0]
    return [name for name in re.findall(r"`([\w/]+\.py)`", section) if "tests/" not in name]


def called_by_each(role: Role) -> dict[str, set[str]]:
    """Returns the files of the package whose functions a request calls, each with the files that it
    calls."""
    calls: dict[str, set[str]] = defaultdict(set)

    def file_of(frame: FrameType | None) -> str | None:
        path = frame and Path(frame.f_code.co_filename)
        return str(path.relative_to(PACKAGE)) if path and path.is_relative_to(PACKAGE) else None

    def note(frame: FrameType, event: str, _: Any) -> None:
        callee = file_of(frame)
        if event != "call" or callee is None:
            return
        calls[callee]
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        if (name := file_of(caller)) is not None:
            calls[name].add(callee)

    request = Request({"text_input": np.array([[b"A sentence."]], object)})
    client = Client().asks(request)
    sys.setprofile(note)
    try:
        (answer,) = role.execute([client])
    finally:
        sys.setprofile(None)
    assert isinstance(answer, dict), answer
    return calls


def test_the_path_of_a_request_is_in_the_files_that_are_named(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, "bert")
    metrics = ServingMetrics(Families(), "m", "embed", reloads=0)
    role = Role(EncoderLoop(EncoderEngine(tmp_path, "embed"), metrics.record), metrics)
    calls = called_by_each(role)
    role.close()
    first, *path = named()
    assert first == "backend/model.py"
    assert "serving/instance/role.py" in path
    assert len([first, *path]) <= MOST_FILES
    assert set(path) <= calls.keys()
    for other in calls.keys() - set(path):  # files that are not named must not be part of the path
        assert not calls[other] & set(path), other
