"""A folder of a tiny Whisper, and its engine, for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fusewire.engine.generation import GenerationEngine

from tests.engine.speech.hearing import SEED, settings
from tests.models.tiny_whisper import tiny_whisper_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("whisper")
    tiny_whisper_folder(found, seed=SEED)
    return found


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[GenerationEngine]:
    with GenerationEngine(folder, settings()) as engine:
        yield engine
