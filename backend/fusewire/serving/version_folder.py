"""Writes a version folder of a model repository, as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fusewire.errors import ConfigurationError

_CHUNK_BYTES = 8 << 20

Progress = Callable[[str, int, int], None]  # file name, bytes done, bytes in total


@contextmanager
def removed_on_error(entry: Path) -> Iterator[None]:
    """Removes `entry` after an error, unless it existed before. An OSError becomes a
    ConfigurationError."""
    found = os.path.lexists(entry)
    try:
        yield
    except BaseException as error:
        if not found:
            shutil.rmtree(entry, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigurationError(
                f"{error.filename or entry}: got '{error.strerror or error}', wanted to write "
                f"{entry}; make room there, or see to the permissions"
            ) from None
        raise


def copy_files(files: dict[str, Path], target: Path, progress: Progress) -> None:
    """Copies files to these names in `target`."""
    total = sum(path.stat().st_size for path in files.values())
    done = 0
    for name, path in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as reader, copy.open("wb") as writer:
            while chunk := reader.read(_CHUNK_BYTES):
                writer.write(chunk)
                done += len(chunk)
                progress(name, done, total)


def replace_version(version: Path, fill: Callable[[Path], None]) -> None:
    """Builds the version folder aside and moves it into place, so that a reader never sees part of
    it, and a server that has mapped the old files keeps them."""
    with tempfile.TemporaryDirectory(dir=version.parent, prefix=".import-") as aside:
        staged = Path(aside) / "staged"
        fill(staged)
        if version.is_symlink():
            version.unlink()
        elif version.exists():
            shutil.move(version, Path(aside) / "old")
        os.rename(staged, version)


def occupied(version: Path) -> bool:
    """Whether a version folder has more than the placeholder of an entry that is committed without
    weights."""
    if version.is_symlink():
        return True
    return version.exists() and any(path.name != ".gitkeep" for path in version.iterdir())
