"""The temporary folder of a server, and the sweeping of those whose server was killed.

A server holds a lock on a file in its folder for as long as its process lives. A process id would
not do: servers in several containers may share one /tmp.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from fusewire.errors import FusewireError

_PREFIX = "fusewire-"
_LOCK = "lock"
_SETTLED_S = 60  # younger folders may not be locked yet


class Workplace:
    """A new temporary folder; `remove` clears it away. FusewireError where programs may not run."""

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise FusewireError(
                f"temporary folder: got {folder}, mounted noexec, wanted one that the "
                "server's stub may run from; set TMPDIR to another"
            )
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Deletes the folder; may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep() -> None:
    """Deletes this user's folders that no living server holds."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        # Gone meanwhile, another user's, or in use.
        with contextlib.suppress(OSError):
            status = lock.stat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _SETTLED_S:
                continue
            with lock.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
