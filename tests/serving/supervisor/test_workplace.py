"""The server's temporary folders: swept when nobody holds them, never while somebody does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.serving.supervisor.workplace import RECORDED, SHARED_MEMORY, Workplace, region_prefix

MAKE = (
    "from fusewire.serving.supervisor.workplace import Workplace; "
    "w = Workplace(); print(w.path, flush=True)"
)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


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
    region = SHARED_MEMORY / f"{region_prefix(left)}of-a-killed-server"
    region.touch()
    mine = Workplace()
    assert mine.swept
    assert not left.exists()
    assert not region.exists()
    assert not Workplace().swept
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
        mine = Workplace()
        Workplace().remove()
        assert theirs.is_dir()
        assert mine.path.is_dir()
        mine.remove()


def test_a_folder_that_is_not_locked_yet_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fusewire-1-new").mkdir()
    (tmp_path / "fusewire-1-new" / "lock.new").touch()
    Workplace().remove()
    assert (tmp_path / "fusewire-1-new").is_dir()


def test_only_what_the_python_backend_makes_is_removed_elsewhere(tmp_path: Path) -> None:
    """A link is a record of a folder, and whoever writes it may be wrong."""
    mine = Workplace()
    made = Path(tempfile.mkdtemp(prefix="python_env_", dir="/tmp"))
    made = made.rename(made.with_name(f"python_env_{made.name[-6:]}"))
    (made / "unpacked").touch()
    other = tmp_path / "python_env_others"
    other.mkdir()
    recorded = mine.path / RECORDED
    recorded.mkdir()
    for number, folder in enumerate((made, other)):
        (recorded / str(number)).symlink_to(folder)
    mine.remove()
    assert not made.exists()
    assert other.is_dir()


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


@pytest.mark.parametrize("name", ["a b", "a'b", "a;b", "a$b", "aéb"])
def test_a_folder_whose_path_the_stub_does_not_get_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name))
    with pytest.raises(ConfigurationError, match=r"^temporary folder \(TMPDIR\): got .* without"):
        Workplace()
    assert not list((tmp_path / name).iterdir())


def test_folders_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "fusewire-notes"
    other.mkdir()
    Workplace().remove()
    assert other.is_dir()
