"""Converts images to input tensors, one dict per request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import InvalidArgument, type_name
from .tensors import Inputs, text_tensor

Image = bytes | str | Path
PixelValues = np.ndarray | Sequence[np.ndarray]

# Maximum size of the files in one request, as servers limit it.
_REQUEST_BYTES = 32 << 20


def image_requests(images: Image | Sequence[Image], images_per_request: int) -> list[Inputs]:
    """Returns requests of at most `images_per_request` files and 32 MiB. A larger file is a request
    of its own."""
    if isinstance(images, Image):
        images = [images]
    if len(images) == 0:
        raise InvalidArgument("images: got an empty list, wanted at least one image; add one")
    parts: list[list[bytes]] = []
    room = 0
    for index, image in enumerate(images):
        data = _read(image, index)
        if not parts or len(parts[-1]) == images_per_request or room < len(data):
            parts.append([])
            room = _REQUEST_BYTES
        parts[-1].append(data)
        room -= len(data)
    return [{"image": _tensor(part)} for part in parts]


def pixel_requests(pixel_values: PixelValues, images_per_request: int) -> list[Inputs]:
    """Returns requests of at most `images_per_request` images of an array [n, 3, height, width]. In
    a list of [3, height, width], whose sizes may differ, each is a request of its own."""
    field = "pixel_values"
    if not isinstance(pixel_values, np.ndarray):
        if len(pixel_values) == 0:
            raise InvalidArgument(f"{field}: got an empty list, wanted at least one image; add one")
        return [{field: _pixels(f"{field}[{i}]", p)[None]} for i, p in enumerate(pixel_values)]
    if pixel_values.ndim != 4 or len(pixel_values) == 0:
        raise InvalidArgument(
            f"{field}: got shape {list(pixel_values.shape)}, wanted [n, 3, height, width]; stack "
            "the images, or give a list of them"
        )
    for image in pixel_values[:1]:
        _pixels(field, image)
    values = np.ascontiguousarray(pixel_values, np.float32)
    begins = range(0, len(values), images_per_request)
    return [{field: values[begin : begin + images_per_request]} for begin in begins]


def with_labels(requests: Sequence[Inputs], labels: Sequence[str]) -> list[Inputs]:
    """Adds candidate labels to the requests, the same for each image."""
    if isinstance(labels, str):
        raise InvalidArgument("candidate_labels: got one string, wanted a list; write [label]")
    if not len(labels) or not all(isinstance(label, str) for label in labels):
        raise InvalidArgument("candidate_labels: got none, or no str, wanted labels; name them")
    row = text_tensor(labels).reshape(1, -1)
    return [
        {**inputs, "candidate_labels": row.repeat(len(next(iter(inputs.values()))), axis=0)}
        for inputs in requests
    ]


def _read(image: Image, index: int) -> bytes:
    if isinstance(image, bytes):
        return image
    if not isinstance(image, (str, Path)):
        raise InvalidArgument(
            f"images[{index}]: got {type_name(image)}, wanted the bytes of a file or its path; "
            "encode it as JPEG, PNG or WebP"
        )
    try:
        return Path(image).read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"images[{index}]: got {str(image)[:80]!r}, which cannot be read ({error}), wanted a "
            "file; correct its path"
        ) from None


def _tensor(files: Sequence[bytes]) -> np.ndarray:
    """Returns a STRING tensor [n, 1]."""
    column = np.empty((len(files), 1), np.object_)
    column[:, 0] = files
    return column


def _pixels(field: str, image: np.ndarray) -> np.ndarray:
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[0] != 3 or array.dtype.kind != "f":
        raise InvalidArgument(
            f"{field}: got {array.dtype} of shape {array.shape}, wanted floats [3, height, width]; "
            "preprocess the image, or send its file with images=…"
        )
    return np.ascontiguousarray(array, np.float32)
