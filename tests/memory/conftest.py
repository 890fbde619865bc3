"""The memory library on a fake device, compiled once per run."""

from __future__ import annotations

import ctypes

import pytest

from tests.memory.fake_device import declare
from tests.memory.native import library


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return declare(library(tmp_path_factory.mktemp("memory"), "fake_device.cc"))
