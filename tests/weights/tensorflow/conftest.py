"""Checkpoints that TensorFlow itself has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.tensorflow.genuine import unpacked


@pytest.fixture(scope="session")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("genuine"))
