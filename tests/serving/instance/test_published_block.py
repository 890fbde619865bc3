"""The file in which the server's front finds an instance's block."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fusewire.engine.admission_block import BYTES
from fusewire.serving.instance.published_block import PREFIX, PublishedBlock

RULES = SimpleNamespace(has_tokenizer=True, pairs="refused")
TEXTS: Any = SimpleNamespace(input_rules=RULES, reads_windows=False, max_length=512)
IMAGES: Any = SimpleNamespace(input_rules=None)


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PREFIX, str(tmp_path / "block_"))
    return tmp_path / "block_"


def sizes(prefix: Path) -> list[int]:
    return sorted(path.stat().st_size for path in prefix.parent.iterdir())


def test_a_block_is_a_file_until_it_is_closed(prefix: Path) -> None:
    published = PublishedBlock("m", 1, "m_0", 1)
    assert sizes(prefix) == [0]
    assert published.of(TEXTS, 8) is not None
    assert sizes(prefix) == [BYTES]
    published.close()
    assert sizes(prefix) == []


def test_a_new_process_takes_the_place_of_the_old_one(prefix: Path) -> None:
    old, new = PublishedBlock("m", 1, "m_0", 1), PublishedBlock("m", 1, "m_0", 1)
    new.of(TEXTS, 8)
    old.close()
    assert sizes(prefix) == [BYTES]


def test_models_with_equal_names_of_instances_have_files_of_their_own(prefix: Path) -> None:
    kept = [PublishedBlock(model, 1, "cpu", 1) for model in ("m", "n")]
    assert all(each.of(TEXTS, 8) is not None for each in kept)
    assert sizes(prefix) == [BYTES, BYTES]


def test_a_model_of_images_takes_no_memory(prefix: Path) -> None:
    assert PublishedBlock("m", 1, "m_0", 1).of(IMAGES, 8) is None
    assert sizes(prefix) == [0]


def test_a_version_without_room_leaves_its_file_empty(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    published = PublishedBlock("m", 1, "m_0", 1)
    assert published.of(TEXTS, 8) is None
    assert sizes(prefix) == [0]
    published.close()
    assert sizes(prefix) == []


def test_what_another_user_put_in_the_way_is_a_warning(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", forbidden)
    assert PublishedBlock("m", 1, "m_0", 1).of(TEXTS, 8) is None
    assert "m: no block for early refusals: Operation not permitted" in caplog.text
