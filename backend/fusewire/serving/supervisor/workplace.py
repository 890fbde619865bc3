"""The temporary folder of a server, and the sweeping of those whose server was killed.

A server holds a lock on a file in its folder for as long as its process lives. A process id would
not do: servers in several containers may share one /tmp.
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

# In a server's folder: links to the temporary folders that it made elsewhere.
RECORDED = "recorded"
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "fusewire-"
_LOCK = "lock"
# What the Python backend makes; other links are not followed.
_MADE_ELSEWHERE = re.compile(r"/tmp/python_env_\w{6}")
# tritonserver starts a stub by a shell that gets the paths of the stub and its model unquoted: the
# model would be loading for ever. In the stub Python's file names are ASCII, whatever the locale.
_UNUSABLE = re.compile(r"[\s\"'`\\$&;|<>()*?\[\]{}]|[^\x00-\x7f]")


def check_path(what: str, path: Path) -> None:
    """ConfigurationError for a folder under which no stub can be started."""
    found = _UNUSABLE.search(str(path))
    if found:
        raise ConfigurationError(
            f"{what}: got {str(path)!r}, wanted a path without {found[0]!r}, which Triton cannot "
            "pass to its stub; rename it, or choose another"
        )


class Workplace:
    """A new temporary folder; `remove` clears it away. FusewireError where programs may not run."""

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        check_path("temporary folder (TMPDIR)", Path(folder))
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise FusewireError(
                f"temporary folder: got {folder}, mounted noexec, wanted one that the "
                "server's stub may run from; set TMPDIR to another"
            )
        # Whether a server of this user was killed: what it held may take a moment to be free.
        self.swept = _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        # Nobody sees the lock before it is held.
        unseen = self.path / "lock.new"
        self._lock = unseen.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Deletes the folder; may be called again."""
        remove_traces(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def region_prefix(folder: Path) -> str:
    """How the names of the shared memory of a folder's server begin."""
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
    """Deletes this user's folders that no living server holds, and their servers' traces. Returns
    whether there were any."""
    swept = False
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # Gone meanwhile, another user's, or in use.
        with contextlib.suppress(OSError):
            if lock.parent.lstat().st_uid != os.getuid() or lock.parent.is_symlink():
                continue
            with lock.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_traces(lock.parent)
                shutil.rmtree(lock.parent, ignore_errors=True)
                swept = True
    return swept
