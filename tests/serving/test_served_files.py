"""What is copied into a repository, or fetched from the hub, is what the tokenizer is read from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fusewire.hub import DESCRIPTIONS
from fusewire.serving.served_files import descriptions
from fusewire.text.tokenizer import Tokenizer

from tests.text.translation_folders import FOLDERS


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_tokenizer_is_the_same_where_it_is_served(tmp_path: Path, kind: str) -> None:
    source = FOLDERS[kind](tmp_path / "source")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, path in descriptions(source).items():
        shutil.copy(path, copy / name)
    for load in (Tokenizer.load, Tokenizer.load_target):
        first, second = (load(folder) for folder in (source, copy))
        assert first is not None
        assert second is not None
        text = "Paris is the capital of France."
        (wanted,), (got,) = (each.encode([text], offsets=False) for each in (first, second))
        assert got.ids == wanted.ids
        assert second.decode(got.ids) == first.decode(wanted.ids)
        assert second.languages == first.languages
    assert {path.name for path in copy.iterdir()} <= {*DESCRIPTIONS}
