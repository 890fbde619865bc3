"""The temporary folder of a server, and the removal of folders whose server was killed.

A server holds a lock on a file in its folder for as long as its process lives. A process id would
not identify it: servers in several containers may share one /tmp.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

from fusewire.errors import ConfigurationError, FusewireError

# Sub-folder of a server's folder, with links to the temporary folders that it made elsewhere.
RECORDED = "recorded"
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "fusewire-"
_LOCK = "lock"
# Folders that the Python backend makes. Other links are not followed.
_MADE_ELSEWHERE = re.compile(r"/tmp/python_env_\w{6}")
# tritonserver starts a stub through a shell, with unquoted paths of the stub and its model. With
# these characters the model would load for ever. In the stub Python's file names are ASCII,
# whatever the locale.
_UNUSABLE = re.compile(r"[\s\"'`\\$&;|<>()*?\[\]{}]|[^\x00-\x7f]")


def check_path(what: str, path: Path) -> None:
    """Raises ConfigurationError for a folder in which no stub can be started."""
    found = _UNUSABLE.search(str(path))
    if found:
        raise ConfigurationError(
            f"{what}: got {str(path)!r}, wanted a path without {found[0]!r}, which Triton cannot "
            "pass to its stub; rename it, or choose another"
        )


class Workplace:
    """A new temporary folder, which `remove` deletes. Raises FusewireError where programs cannot be
    executed in it."""

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        check_path("temporary folder (TMPDIR)", Path(folder))
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise FusewireError(
                f"temporary folder: got {folder}, mounted noexec, wanted one that the "
                "server's stub may run from; set TMPDIR to another"
            )
        # Whether a server of this user was killed. Its ports and memory may not be free at once.
        self.swept = _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        # The lock becomes visible only when it is held.
        unseen = self.path / "lock.new"
        self._lock = unseen.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Deletes the folder. May be called repeatedly."""
        remove_traces(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def region_prefix(folder: Path) -> str:
    """Returns the prefix of the names of shared memory of a folder's server."""
    return f"{folder.name.replace('-', '_')}_"


def remove_traces(folder: Path) -> None:
    """Removes what a folder's server, which has ended, left outside the folder: shared memory, and
    temporary folders with a fixed path."""
    for region in SHARED_MEMORY.glob(f"{region_prefix(folder)}*"):
        with contextlib.suppress(OSError):
            region.unlink()
    for link in (folder / RECORDED).glob("*"):
        with contextlib.suppress(OSError):
            made = os.readlink(link)
            if _MADE_ELSEWHERE.fullmatch(made) and os.lstat(made).st_uid == os.getuid():
                shutil.rmtree(made, ignore_errors=True)
            link.unlink()


def _sweep() -> bool:
    """Deletes this user's folders that no running server holds, and what their servers left
    elsewhere. Returns whether there were any."""
    swept = False
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # The folder was removed, belongs to another user, or is in use.
        with contextlib.suppress(OSError):
            if lock.parent.lstat().st_uid != os.getuid() or lock.parent.is_symlink():
                continue
            with lock.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_traces(lock.parent)
                shutil.rmtree(lock.parent, ignore_errors=True)
                swept = True
    return swept
