"""A temporary model folder for an import, without its weights, which are still to be written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged_folder(name: str, others: Mapping[str, Path], beside: Path) -> Iterator[Path]:
    """A context with a temporary folder of this name in `beside`, with copies of the files `others`
    (name -> path), which are all files but the weights. Raises OSError."""
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=beside, prefix=".import-") as aside:
        target = Path(aside) / name
        target.mkdir()
        for file, path in others.items():
            (target / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / file)
        yield target
