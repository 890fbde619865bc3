"""Where a process that is started anew imports from."""

from __future__ import annotations

import sys
from pathlib import Path

import fusewire


def import_path() -> list[str]:
    """The absolute folders that this process imports from, in order. That of this fusewire is among
    them, though it was found in the working folder."""
    paths = [Path(path).absolute() for path in sys.path if path]
    own = Path(fusewire.__file__).absolute().parent.parent
    if own not in paths:
        paths.insert(0, own)
    return list(dict.fromkeys(str(path) for path in paths if path.exists()))
