"""The server's temporary folders: swept when nobody holds them, never while somebody does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fusewire.serving.workplace import Workplace

MAKE = (
    "from fusewire.serving.workplace import Workplace; w = Workplace(); print(w.path, flush=True)"
)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def age(folder: Path) -> None:
    """As if it had been made some minutes ago."""
    then = time.time() - 300
    os.utime(folder / "lock", (then, then))


def left_by_a_killed_process() -> Path:
    done = subprocess.run(
        [sys.executable, "-c", MAKE + "; import os; os._exit(9)"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return Path(done.stdout.strip())


def test_what_a_killed_server_left_is_swept() -> None:
    left = left_by_a_killed_process()
    assert left.is_dir()
    age(left)
    mine = Workplace()
    assert not left.exists()
    mine.remove()
    assert not mine.path.exists()


def test_a_living_server_keeps_its_folder() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE + "; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        age(theirs)
        mine = Workplace()
        age(mine.path)
        Workplace().remove()
        assert theirs.is_dir()
        assert mine.path.is_dir()
        mine.remove()


def test_a_folder_that_may_not_be_locked_yet_is_left_alone() -> None:
    left = left_by_a_killed_process()
    Workplace().remove()
    assert left.is_dir()


def test_a_folder_that_nothing_may_run_from_is_refused(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o noexec none {tmp_path}"
    own_mounts = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*own_mounts, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount: no folder without execution to be had")
    done = subprocess.run(
        [*own_mounts, f'{mount}; exec {sys.executable} -c "{MAKE}"'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"temporary folder: got {tmp_path}, mounted noexec, wanted" in done.stderr
    assert "set TMPDIR" in done.stderr


def test_folders_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "fusewire-notes"
    other.mkdir()
    Workplace().remove()
    assert other.is_dir()
