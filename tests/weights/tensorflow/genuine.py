"""What TensorFlow itself has written: MODEL/torch, h5, tf1, … (see make_genuine.py)."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpacked(folder: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("genuine.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder
