"""A bad version in a model's folder: what served before serves on, and is what is healed from."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.attacks.attack import EVERYWHERE, HONEST, Kind, Stage, attack
from tests.attacks.requests import OK, TYPED, Outcome, post

_HEALED_S = 15.0
VERSIONED = Kind("versioned", sources=lambda folders: [str(folders.versioned)], flags=HONEST.flags)
_TENSOR = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["still there"]}


def _answers(stage: Stage) -> bool:
    path = "/v2/models/versioned/infer"
    answer = post(stage.target.addresses["http"], path, {"inputs": [_TENSOR]}, timeout_s=5)
    return answer.kind == OK


def _add_bad_version(stage: Stage) -> Outcome:
    """Version 2, whose weights are cut off, and an operator who loads it. A load of what did not
    change since the last one does nothing, and is OK."""
    entry: Path = stage.folders.versioned / "versioned"
    if not (entry / "2").exists():
        shutil.copytree(entry / "1", entry / "2")
        weights = entry / "2" / "model.safetensors"
        data = weights.read_bytes()
        weights.unlink()  # it may be a link
        weights.write_bytes(data[: len(data) // 2])
    key = {"fusewire-control-key": stage.target.control_key}
    path = "/v2/repository/models/versioned/load"
    return post(stage.target.addresses["http"], path, {}, headers=key)


@attack(VERSIONED)
def bad_version(stage: Stage) -> None:
    loaded = _add_bad_version(stage)
    assert loaded.kind == TYPED, f"a version whose weights are cut off: {loaded}"
    assert _answers(stage), "version 1 no longer answers"


@attack(VERSIONED, breaks=EVERYWHERE, heals_s=_HEALED_S)
def bad_version_and_a_crash_of_the_model(stage: Stage) -> None:
    _add_bad_version(stage)
    stage.target.stub("versioned").kill()
    took = stage.until(lambda: _answers(stage), _HEALED_S, "version 1 answers again")
    stage.note(f"version 1 after {took:.1f} s")


@attack(VERSIONED, breaks=EVERYWHERE, heals_s=2 * _HEALED_S)
def bad_version_and_a_crash_of_the_server(stage: Stage) -> None:
    _add_bad_version(stage)
    stage.target.tritonserver().kill()
    took = stage.until(lambda: _answers(stage), 2 * _HEALED_S, "version 1 answers again")
    stage.note(f"version 1 after {took:.1f} s")
