"""Encoded images become the pixels of transformers' load_image, or an error of their own."""

from __future__ import annotations

import base64
import contextlib
import io
import subprocess
import sys

import numpy as np
import pytest
from fusewire.errors import InvalidInput
from fusewire.images import decode
from fusewire.images.decode import MOST_BYTES, MOST_PIXELS, MOST_SCANS
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from tests.images import files

KINDS = ("JPEG", "PNG", "WEBP")
MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
}


def as_transformers(data: bytes) -> np.ndarray:
    return np.asarray(load_image(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind in KINDS for mode in MODES[kind]])
def test_every_kind_of_pixel_becomes_rgb_as_in_transformers(kind, mode):
    data = files.encoded(files.image(37, 23, mode), kind)
    image = decode(data)
    assert (image.mode, image.size) == ("RGB", (37, 23))
    np.testing.assert_array_equal(np.asarray(image), as_transformers(data))


def test_a_palette_with_a_transparent_colour_becomes_rgb_as_in_transformers():
    data = files.encoded(files.image(37, 23, "P"), transparency=3)
    np.testing.assert_array_equal(np.asarray(decode(data)), as_transformers(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_a_photo_is_rotated_as_its_exif_orientation_says(kind, orientation):
    data = files.encoded(files.image(37, 23), kind, orientation)
    found = np.asarray(decode(data))
    assert found.shape[:2] == ((37, 23) if orientation >= 5 else (23, 37))
    np.testing.assert_array_equal(found, as_transformers(data))


def test_16_bit_colours_keep_their_high_bytes():
    levels = files.pixels(5, 4, 6)
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    found = np.asarray(decode(files.png(5, 4, 16, 2, rows)))
    np.testing.assert_array_equal(found, levels[..., ::2])


def test_of_a_phones_jpeg_with_a_second_picture_the_first_is_read():
    first, second = files.image(37, 23), files.image(11, 7, seed=1)
    file = io.BytesIO()
    first.save(file, "MPO", save_all=True, append_images=[second])
    data = file.getvalue()
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert decode(data).size == (37, 23)
    np.testing.assert_array_equal(np.asarray(decode(data)), as_transformers(data))


def animated(kind: str) -> bytes:
    frames = [files.image(8, 8, seed=seed) for seed in range(3)]
    return files.encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def bomb(width: int, height: int) -> bytes:
    return files.png(width, height, 1, 0, bytes((width // 8 + 1) * height))


BAD = {
    "no bytes": (b"", "got no bytes, wanted a JPEG, PNG or WebP file"),
    "a text": (b"A photo of a cat", "begin with b'A photo ', wanted a JPEG, PNG or WebP file"),
    "base64": (base64.b64encode(files.photo(8, 8)), "as they are, not in base64"),
    "a GIF": (files.encoded(files.image(8, 8, "P"), "GIF"), "begin with b'GIF8"),
    "a TIFF": (files.encoded(files.image(8, 8), "TIFF"), "wanted a JPEG, PNG or WebP file"),
    "a JPEG's first bytes": (b"\xff\xd8\xff", "a damaged or truncated JPEG file"),
    "a PNG without chunks": (b"\x89PNG\r\n\x1a\n", "a damaged or truncated PNG file"),
    "a WebP's first bytes": (b"RIFF\0\0\0\0WEBP", "a damaged or truncated WEBP file"),
    "a PNG without pixels": (files.png(8, 8, 8, 2, b""), "a damaged or truncated PNG file"),
    "an animated PNG": (animated("PNG"), "an animated PNG file of 3 frames"),
    "an animated WebP": (animated("WEBP"), "an animated WEBP file of 3 frames"),
    "grey in 16 bits": (files.png(8, 8, 16, 0, bytes(17 * 8)), "16-bit grey levels"),
    "100 million pixels": (
        bomb(10_000, 10_000),
        rf"got 10000 x 10000 pixels, wanted at most {MOST_PIXELS} pixels",
    ),
    "more than Pillow opens": (bomb(40_000, 20_000), "got many more pixels, wanted at most"),
    "one row of them": (bomb(100_000_000, 1), "got 100000000 x 1 pixels"),
    "scans": (
        files.many_scans(64, 64, MOST_SCANS + 1),
        f"got a JPEG file of {MOST_SCANS + 1} scans, wanted at most {MOST_SCANS}",
    ),
    "bytes": (bytes(MOST_BYTES + 1), f"got {MOST_BYTES + 1} bytes, wanted at most {MOST_BYTES}"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("what", BAD)
def test_what_is_no_image_for_a_model_is_refused_in_words(what):
    data, message = BAD[what]
    with pytest.raises(InvalidInput, match=message) as caught:
        decode(data)
    assert caught.value.field == "image"


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_cut_anywhere_is_refused(kind):
    data = files.photo(48, 32, kind)
    for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
        with pytest.raises(InvalidInput, match=r"damaged or truncated|wanted a JPEG, PNG or WebP"):
            decode(data[: int(share * len(data))])


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_an_image_or_an_invalid_input(data):
    kind = data.draw(st.sampled_from(KINDS))
    file = bytearray(files.encoded(files.image(24, 16), kind, orientation=6))
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(file) - 1), st.integers(0, 255)), max_size=8)
    ):
        file[at] = byte
    with contextlib.suppress(InvalidInput):
        assert decode(bytes(file)).mode == "RGB"


def test_without_pillow_the_error_names_the_extra():
    code = """
import sys
sys.modules["PIL"] = None
from fusewire.errors import ConfigurationError
try:
    import fusewire.images
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'fusewire[images]'" in done.stdout


def test_a_bomb_takes_no_memory_for_its_pixels():
    """A process that may use 256 MiB more rejects an image that needs 384 MB."""
    code = """
import resource
from fusewire.errors import InvalidInput
from fusewire.images import decode
from tests.images import files
data = files.png(12_000, 8_000, 8, 6, bytes(1 << 20))
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (256 << 20),) * 2)
try:
    decode(data)
except InvalidInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("image: got 12000 x 8000 pixels")
