"""Guarantees of cut_patches beyond its rows: one rounding, the largest value of each image, and
errors for images that do not exist."""

from __future__ import annotations

import numpy as np
import pytest
from fusewire import kernels as k
from fusewire.placement import Placement

from tests.ops.case import Operands, normal
from tests.places import on_gpu, rounded


def cut(place: Placement, pixels: np.ndarray, images: list, rows: int, *how: int):
    o = Operands(place, "dense")
    out, largest = o.room(rows, how[0] * how[1] ** 2), o.fp32(np.zeros(len(images)))
    table = o.int64(np.reshape(images, (len(images), 4)))
    k.cut_patches(out, largest, o.fp32(pixels), table, *how, place.stream)
    return o.read(out), o.read(largest)


def test_pixels_are_rounded_once(place: Placement):
    pixels = normal(np.random.default_rng(0), 3 * 28 * 30)
    out, largest = cut(place, pixels, [(0, 0, 28, 30)], 4, 3, 14, 0)
    of_patch = pixels.reshape(3, 28, 30)[:, 14:, :14].reshape(-1)
    np.testing.assert_array_equal(out[2], rounded(of_patch, place.dtype))
    assert largest[0] == np.abs(pixels).max()


@pytest.mark.parametrize("where", [0, 15, 44, 45, 89, -1])  # -1: a pixel outside whole patches
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, -1e30])
def test_the_largest_number_is_that_of_all_pixels_of_the_image(where, value, place: Placement):
    rng = np.random.default_rng(0)
    images = [normal(rng, 2 * 5 * 9) for _ in range(3)]
    images[1][where] = value
    table = [(3 * i, 90 * i, 5, 9) for i in range(3)]
    _, largest = cut(place, np.concatenate(images), table, 9, 2, 3, 0)
    np.testing.assert_array_equal(largest, [np.abs(image).max() for image in images])


def test_rows_of_no_image_are_left_alone(place: Placement):
    out, _ = cut(place, np.ones(32, np.float32), [(4, 0, 4, 4), (1, 16, 4, 4)], 6, 1, 4, 1)
    assert np.isnan(out).all(1).tolist() == [True, False, False, True, False, False]


OUTSIDE = [
    (0, 0, 11, 8),
    (0, 17, 8, 10),
    (2, 0, 8, 8),
    (-1, 0, 8, 8),
    (0, -1, 8, 8),
    (0, 0, -8, -8),
    (0, 0, 0, 8),
    (0, 0, 2**62, 4),
    (2**63 - 1, 0, 8, 8),
]


@pytest.mark.parametrize("image", OUTSIDE)
def test_an_image_outside_of_the_pixels_or_rows_never_reads_memory(image, place: Placement):
    pixels, good = np.ones(2 * 80, np.float32), (0, 0, 8, 8)
    if not on_gpu(place):
        with pytest.raises(k.Error, match=r"images\[1\]: got row .*, wanted it within 5 rows"):
            cut(place, pixels, [good, image], 5, 2, 4, 0)
        return
    out, largest = cut(place, pixels, [good, image], 5, 2, 4, 0)
    assert largest[0] == 1
    assert np.isnan(largest[1])
    assert np.isnan(out[4:]).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ((0, 4, 0), "channels, size, leading: got 0, 4, 0"),
        ((1, 0, 0), "channels, size, leading: got 1, 0, 0"),
        ((1, 4, -1), "channels, size, leading: got 1, 4, -1"),
        ((1, 5, 0), "out: got 16 columns, wanted one for each of the 1 x 5 x 5 pixels"),
        ((2**40, 2**40, 0), "out: got 16 columns"),
    ],
)
def test_numbers_that_make_no_patch_are_refused(how, message: str):
    tensors = (np.zeros(shape, np.float32) for shape in [(1, 16), (1,), (16,)])
    table = k.Tensor.from_numpy(np.array([[0, 0, 4, 4]]))
    with pytest.raises(k.Error, match=message):
        k.cut_patches(*map(k.Tensor.from_numpy, tensors), table, *how)
