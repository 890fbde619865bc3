"""Folders of tiny models of images, and requests with images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.api import test_image_texts, test_images
from tests.images import files


def classifier(path: Path, name: str = "vit") -> Path:
    """With labels of its own."""
    test_images.folder_of(path, name)
    return path


def clip(path: Path, name: str = "clip") -> Path:
    """Of images and texts."""
    test_image_texts.folder_of(path, name)
    return path


def photos(count: int, kind: str = "PNG") -> list[bytes]:
    return [files.photo(60 + 9 * seed, 45, kind, seed) for seed in range(count)]


def column(*values: bytes) -> np.ndarray:
    """STRING [n, 1]."""
    array = np.empty((len(values), 1), object)
    array[:, 0] = values
    return array


def images(*values: bytes) -> dict[str, np.ndarray]:
    return {"image": column(*values)}


def labels(rows: int, *names: str) -> dict[str, np.ndarray]:
    return {"candidate_labels": np.array([[name.encode() for name in names]] * rows, object)}
