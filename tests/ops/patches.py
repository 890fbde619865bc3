"""The op cut_patches."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from fusewire import kernels as k

from tests.ops.case import Arrays, Case, Operands, Tensors, normal

# (sizes of the images, channels, side of a patch, leading rows of each)
IMAGES = [
    (((4, 4),), 1, 4, 0),
    (((32, 48),), 3, 16, 1),
    (((43, 44), (14, 14), (28, 56)), 3, 14, 2),
    (((5, 9), (7, 3)), 2, 3, 1),
    (((20, 3),), 3, 4, 1),  # smaller than a patch: only the leading row
    (((224, 224), (160, 400)), 3, 32, 0),
]


def patches_of(height: int, width: int, shape: tuple) -> int:
    return (height // shape[2]) * (width // shape[2])


def table(shape: tuple) -> np.ndarray:
    """Returns int64[images, 4]: row, pixel, height, width."""
    rows, pixels = [0], [0]
    for height, width in shape[0]:
        rows.append(rows[-1] + shape[3] + patches_of(height, width, shape))
        pixels.append(pixels[-1] + shape[1] * height * width)
    return np.array(
        [(row, pixel, *size) for row, pixel, size in zip(rows, pixels, shape[0], strict=False)]
    )


def make(rng: np.random.Generator, shape: tuple) -> Arrays:
    count = shape[1] * sum(height * width for height, width in shape[0])
    return {"pixels": normal(rng, count), "images": table(shape)}


def cut(o: Operands, a: Arrays, shape: tuple) -> np.ndarray:
    """Returns the rows, each followed by the largest value of its image."""
    sizes, channels, size, leading = shape
    lengths = [leading + patches_of(*each, shape) for each in sizes]
    cols = (channels * size * size + 7) // 8 * 8
    largest = o.fp32(np.full(len(sizes), -1.0))
    pixels, images = o.fp32(a["pixels"]), o.int64(a["images"])
    given = largest, pixels, images, channels, size, leading
    rows = o.result(k.cut_patches, (sum(lengths), cols), *given)
    return np.column_stack([rows, np.repeat(o.read(largest), lengths)])


def unfolded(t: Tensors, shape: tuple) -> torch.Tensor:
    _, channels, size, leading = shape
    cols = (channels * size * size + 7) // 8 * 8
    found = []
    for _, begin, height, width in t["images"].tolist():
        image = t["pixels"][begin : begin + channels * height * width]
        image = image.reshape(1, channels, height, width)
        rows = image.new_zeros(leading + patches_of(height, width, shape), cols + 1)
        if len(rows) > leading:
            patches = F.unfold(image, size, stride=size)[0].T
            rows[leading:, : patches.shape[1]] = patches
        rows[:, cols] = image.abs().max()
        found.append(rows)
    return torch.cat(found)


CASES = {
    "cut_patches": Case(
        IMAGES,
        make,
        cut,
        unfolded,
        exact=True,
        gpu_shapes=((((224, 224),) * 40, 3, 14, 1), (((2048, 2048), (16, 16)), 3, 16, 1)),
    ),
}
