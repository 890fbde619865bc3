"""Encoded images generated for tests: of every mode, orientation and format, and invalid ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def pixels(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Returns random levels with slow changes, as in photographs: uint8 [height, width,
    channels]."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 7 + 1, width // 7 + 1, channels))
    smooth = coarse.repeat(7, axis=0).repeat(7, axis=1)[:height, :width]
    return ((smooth + rng.integers(0, 64, smooth.shape)) % 256).astype(np.uint8)


def image(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    if mode in ("1", "L", "P"):
        grey = Image.fromarray(pixels(width, height, 1, seed)[..., 0])
        return grey if mode == "L" else grey.convert(mode)
    channels = {"LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    return Image.fromarray(pixels(width, height, channels, seed), mode)


def encoded(
    image: Image.Image, kind: str = "PNG", orientation: int | None = None, **options
) -> bytes:
    if orientation is not None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    if kind == "WEBP":
        options.setdefault("lossless", True)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photo(width: int, height: int, kind: str = "PNG", seed: int = 0) -> bytes:
    return encoded(image(width, height, seed=seed), kind)


def png(width: int, height: int, bits: int, colour: int, data: bytes) -> bytes:
    """Returns a PNG with any header and any compressed rows."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def many_scans(width: int, height: int, scans: int) -> bytes:
    """Returns a progressive JPEG whose last scan is repeated until it has this many."""
    data = encoded(image(width, height), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    return data[:last] + scan * (scans - data.count(b"\xff\xda") + 1) + data[-2:]
