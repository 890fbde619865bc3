"""`import` and `load` take a model by its id, as they take a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_stand_in import Hub, files_of, stand_in
from tests.reference import tiny_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_checkpoint(folder, "bert", "embed")
    return folder


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[Hub]:
    with stand_in() as hub:
        hub.commit("owner/tiny", files_of(folder))
        yield hub


@pytest.fixture(scope="module")
def python(
    hub: Hub, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    home = str(tmp_path_factory.mktemp("home"))

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("how", ["--copy", "--link"])
def test_import_takes_an_id(
    python: Callable[..., subprocess.CompletedProcess[str]], folder: Path, tmp_path: Path, how: str
) -> None:
    done = python("-m", "fusewire", "import", "owner/tiny", how, "--repository", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"name": "tiny", "path": str(tmp_path / "tiny")}
    copied = tmp_path / "tiny" / "1"
    assert copied.is_symlink() == (how == "--link")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        assert (copied / name).read_bytes() == (folder / name).read_bytes()


def test_a_bad_flag_is_refused_before_anything_is_fetched(
    python: Callable[..., subprocess.CompletedProcess[str]], hub: Hub
) -> None:
    hub.sent.clear()
    done = python("-m", "fusewire", "import", "owner/other", "--device=gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("fusewire: device: got 'gpu'")
    assert hub.sent == []


def test_load_takes_an_id_and_a_revision(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    call = "import fusewire; print(fusewire.load('owner/tiny', revision={!r}).task)"
    done = python("-c", call.format("main"))
    assert (done.returncode, done.stdout) == (0, "embed\n"), done.stderr
    assert "got revision 'gone'" in python("-c", call.format("gone")).stderr
