"""Systems that image classifiers are compared with give transformers' logits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks import image_rivals
from benchmarks.arena import Turn
from benchmarks.images import PACKAGES, System, pixels_of, rows_of_case
from tests.tolerance import MODEL_FP32

TINY = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "patch_size": 56,
}
PIXELS = pixels_of(3, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vit")
    image_rivals.write_vit(path, **TINY)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path) -> np.ndarray:
    with System("exact", image_rivals.exact, folder, 1) as exact:
        return exact.run(PIXELS)


# Each takes ten seconds to start, compiling another thirty.
RIVALS = [name for name in image_rivals.SYSTEMS if name != "fusewire"]


@pytest.mark.parametrize(
    "name", ["fusewire", *(pytest.param(name, marks=pytest.mark.sweep) for name in RIVALS)]
)
def test_a_system_computes_transformers_logits(name: str, folder: Path, wanted: np.ndarray) -> None:
    if importlib.util.find_spec(PACKAGES.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    assert wanted.shape == (3, 1000)
    with System(name, image_rivals.SYSTEMS[name], folder, "cpu", 1) as system:
        for images in (3, 1):
            assert np.abs(system.run(PIXELS[:images]) - wanted[:images]).max() < MODEL_FP32
        turn = system.time(PIXELS, 0.01)
        assert min(turn.seconds) > 0


def test_rows_compare_with_the_fastest_rival() -> None:
    seconds = {"fusewire": 2.0, "torch-eager": 8.0, "onnxruntime": 3.0}
    turns = {name: [Turn([each], 0.0)] for name, each in seconds.items()}
    rows = {row["system"]: row for row in rows_of_case(turns, 4, {"case": "4"})}
    assert rows["fusewire"]["times_best_rival"] == 1.5
    assert rows["torch-eager"]["best_rival"] == "onnxruntime"
    assert rows["fusewire"]["images_per_s"] == 2.0
