"""Checkpoint folders that lead out of themselves are not imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fusewire.errors import CheckpointError
from fusewire.serving.repository import import_folder

from tests.reference import tiny_checkpoint


def _index_with(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            f'{{"weight_map": {{"embeddings.word_embeddings.weight": "{name}"}}}}'
        )

    return change


def _link(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).replace(outside)
        (folder / name).symlink_to(outside)

    return change


HOSTILE_FOLDERS: dict[str, Callable[[Path], None]] = {
    "an index that names ..": _index_with("../outside.safetensors"),
    "an index that names an absolute path": _index_with("/etc/outside.safetensors"),
    "an index that hides .. in a folder": _index_with("a/../../outside.safetensors"),
    "weights that are a link": _link("model.safetensors"),
    "a configuration that is a link": _link("config.json"),
    "a tokenizer that is a link": _link("tokenizer.json"),
}


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("case", HOSTILE_FOLDERS)
def test_what_leads_out_of_the_folder_is_not_imported(
    tmp_path: Path, case: str, link: bool
) -> None:
    folder = tmp_path / "folder"
    tiny_checkpoint(folder, "bert")
    HOSTILE_FOLDERS[case](folder)
    with pytest.raises(CheckpointError, match=r"`\.\.`|leading out of the folder") as caught:
        import_folder(folder, tmp_path / "repository", name="m", link=link)
    assert str(tmp_path) not in str(caught.value)
    assert not (tmp_path / "repository" / "m" / "config.pbtxt").exists()
