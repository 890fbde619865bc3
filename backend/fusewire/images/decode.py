"""Decodes JPEG, PNG and WebP to an upright RGB image, in bounded memory and time.

The pixels equal those of transformers' `load_image`, which its pipelines and processors call for a
file: rotated according to the EXIF orientation, then converted to RGB (palettes are looked up, grey
is repeated, alpha is dropped, CMYK is converted).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageOps

from fusewire.errors import InvalidInput

FIELD = "image"

# Pixels of one image: more than those of phone cameras (50 million), fewer than 100 million. A
# pixel takes up to 8 bytes while it is decoded and converted, 20 in a lossless WebP.
MOST_PIXELS = 1 << 26
MOST_BYTES = 64 << 20  # of one file
# Decoding a scan of a JPEG visits all of its pixels, however short the scan is. Encoders write
# about 10 scans.
MOST_SCANS = 50

# Format -> the bytes that identify it, with their offsets.
_SIGNATURES = {
    "JPEG": ((0, b"\xff\xd8\xff"),),
    "PNG": ((0, b"\x89PNG\r\n\x1a\n"),),
    "WEBP": ((0, b"RIFF"), (8, b"WEBP")),
}
# How Pillow names what it was given.
_ADDRESS = re.compile(r"<_io\.BytesIO object at \w+>")
_START_OF_SCAN = b"\xff\xda"  # does not occur in compressed data


def decode(data: bytes) -> Image.Image:
    """Returns the image as upright 8-bit RGB. Raises InvalidInput for other formats, damaged,
    truncated or animated images, 16-bit grey, and too many pixels, bytes or scans."""
    return rgb(open_image(data))


def open_image(data: bytes) -> Image.Image:
    """Returns the image with its header read and checked, before memory is allocated for its
    pixels. Raises InvalidInput as `decode`."""
    if len(data) > MOST_BYTES:
        got = f"{len(data)} bytes"
        raise InvalidInput(FIELD, got, f"at most {MOST_BYTES}", "send a smaller file")
    kind = _format(data)
    with _errors_of(kind):
        image = Image.open(io.BytesIO(data), formats=[kind])
        _check(image, data)
        return image


def upright(image: Image.Image) -> Image.Image:
    """Returns an upright copy, with all of its pixels read, of an image that the caller has opened
    or made. Raises InvalidInput as `decode`. Of an animation the current frame is used."""
    with _errors_of(image.format or ""):
        _check_pixels(image)
        return ImageOps.exif_transpose(image)


def rgb(image: Image.Image) -> Image.Image:
    """Returns the pixels of an opened image, upright and as 8-bit RGB. Raises InvalidInput as
    `decode`."""
    with _errors_of(image.format or ""):
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return image.convert("RGB")


def _format(data: bytes) -> str:
    for kind, parts in _SIGNATURES.items():
        if all(data[at : at + len(part)] == part for at, part in parts):
            return kind
    got = f"{len(data)} bytes that begin with {data[:8]!r}" if data else "no bytes"
    remedy = "send the bytes of the file as they are, not in base64"
    raise InvalidInput(FIELD, got, "a JPEG, PNG or WebP file", remedy)


def _check(image: Image.Image, data: bytes) -> None:
    """Raises InvalidInput for what the header shows."""
    _check_pixels(image)
    # Of a JPEG with several pictures (MPO, written by phones) the first is used.
    if image.format in ("PNG", "WEBP") and getattr(image, "is_animated", False):
        frames = getattr(image, "n_frames", 0)
        got = f"an animated {image.format} file of {frames} frames"
        raise InvalidInput(FIELD, got, "a still image", "send one frame")
    if image.format in ("JPEG", "MPO") and (scans := data.count(_START_OF_SCAN)) > MOST_SCANS:
        got = f"a JPEG file of {scans} scans"
        raise InvalidInput(FIELD, got, f"at most {MOST_SCANS}", "encode it again")


def _check_pixels(image: Image.Image) -> None:
    size = f"{image.width} x {image.height} pixels"
    if image.width * image.height > MOST_PIXELS:
        raise _too_large(size)
    if not image.width * image.height:
        raise InvalidInput(FIELD, size, "1 or more", "leave it out")
    if image.mode.startswith(("I", "F")):  # converting it would clip its levels to 255
        got = "float levels" if image.mode == "F" else "16-bit grey levels"
        raise InvalidInput(FIELD, got, "8 bits a channel", "convert them as their range demands")


@contextmanager
def _errors_of(kind: str) -> Iterator[None]:
    """Raises InvalidInput for whatever Pillow raises for a damaged file: its parsers raise many
    types."""
    try:
        yield
    except (InvalidInput, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("many more pixels") from None
    except Exception as error:
        reason = _ADDRESS.sub("the file", str(error))[:80] or type(error).__name__
        got = f"a damaged or truncated {kind} file ({reason})"
        raise InvalidInput(FIELD, got, "a whole one", "send it again") from None


def _too_large(got: str) -> InvalidInput:
    return InvalidInput(FIELD, got, f"at most {MOST_PIXELS} pixels", "send a smaller image")
