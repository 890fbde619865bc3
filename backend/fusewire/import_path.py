"""The import path for a new Python process."""

from __future__ import annotations

import sys
from pathlib import Path

import fusewire


def import_path() -> list[str]:
    """Returns the absolute folders that this process imports from, in order. They include the
    folder of this fusewire, even where it was found through the working directory."""
    paths = [Path(path).absolute() for path in sys.path if path]
    own = Path(fusewire.__file__).absolute().parent.parent
    if own not in paths:
        paths.insert(0, own)
    return list(dict.fromkeys(str(path) for path in paths if path.exists()))
