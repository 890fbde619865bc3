"""Converts an RGB image to a model's pixel values, bit for bit as transformers' PIL processors do:
resize, centre crop, rescale, normalise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fusewire.errors import InvalidInput
from fusewire.images.decode import FIELD, MOST_PIXELS, decode

CHANNELS = 3
MOST_SIDE = 2048  # of the model's input; up to this size Pillow's filters are short


@dataclass(frozen=True)
class Size:
    """The size to resize an image to: height and width, or `shortest_edge`, the length of the
    shorter side, which keeps the aspect ratio."""

    height: int = 0
    width: int = 0
    shortest_edge: int = 0

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Returns (width, height) after resizing an image of this width and height."""
        if not self.shortest_edge:
            return self.width, self.height
        if width <= height:
            return self.shortest_edge, int(self.shortest_edge * height / width)
        return int(self.shortest_edge * width / height), self.shortest_edge


@dataclass(frozen=True)
class Preprocessing:
    """The steps of one model's processor. A step that is left out is None."""

    size: Size | None
    resample: Image.Resampling
    crop: tuple[int, int] | None  # (height, width)
    rescale_factor: float | None
    mean: tuple[float, ...] | None  # per channel, like `std`
    std: tuple[float, ...] | None

    def values(self) -> dict[str, Any]:
        """Returns the argument of `of_values` in another process: numbers and lists of them."""
        return asdict(self)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Self:
        lists = {name: values[name] and tuple(values[name]) for name in ("crop", "mean", "std")}
        size = Size(**values["size"]) if values["size"] else None
        resample = Image.Resampling(values["resample"])
        return cls(**{**values, **lists, "size": size, "resample": resample})

    def __call__(self, data: bytes) -> NDArray[np.float32]:
        """Returns the pixel values [3, height, width] of an encoded image. Raises InvalidInput as
        `decode` and `pixel_values`."""
        return self.pixel_values(decode(data))

    def pixel_values(self, image: Image.Image) -> NDArray[np.float32]:
        """Returns the pixel values [3, height, width] of an RGB image. Raises InvalidInput where an
        image of this aspect ratio would be resized to too many pixels, or an image that is not
        resized has too many."""
        size = self.size.of(*image.size) if self.size else image.size
        _check("resized to ", size, MOST_PIXELS)
        if self.crop is None:
            _check("given to the model with ", size, MOST_SIDE**2)
        if self.size:
            image = image.resize(size, self.resample)
        pixels = np.asarray(image)
        if self.crop is not None:
            pixels = _center_crop(pixels, *self.crop)
        values = np.empty((CHANNELS, *pixels.shape[:2]), np.float32)
        for channel, table in enumerate(self._tables):
            np.take(table, pixels[..., channel], out=values[channel], mode="clip")
        return values

    @cached_property
    def _tables(self) -> NDArray[np.float32]:
        """[3, 256]: the pixel value of each of the 256 levels of a channel, rescaled in fp64 and
        rounded, then normalised in fp32, as in transformers."""
        levels = np.arange(256, dtype=np.float64)
        if self.rescale_factor is not None:
            levels *= self.rescale_factor
        tables = np.tile(levels.astype(np.float32), (CHANNELS, 1))
        if self.mean is not None and self.std is not None:
            mean, std = (np.array([each], np.float32).T for each in (self.mean, self.std))
            tables = (tables - mean) / std
        return tables


def _check(what: str, size: tuple[int, int], most: int) -> None:
    if size[0] * size[1] > most:
        raise InvalidInput(
            FIELD,
            f"an image that would be {what}{size[0]} x {size[1]} pixels",
            f"at most {most}",
            "cut it, so that its sides differ less",
        )


def _center_crop(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Returns the centre [height, width, 3] of pixels [h, w, 3]. Positions outside the image are
    black."""
    above, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    if above < 0 or left < 0:
        margins = [
            (max(0, -begin), max(0, end))
            for begin, end in (
                (above, height - pixels.shape[0] + above),
                (left, width - pixels.shape[1] + left),
            )
        ]
        pixels = np.pad(pixels, (*margins, (0, 0)))
        above, left = max(0, above), max(0, left)
    return pixels[above : above + height, left : left + width]
