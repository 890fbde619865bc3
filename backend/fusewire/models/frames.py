"""The input block of audio: convolutions over its frames, each as one matrix product over windows
of three neighbours, and positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.models.assemble import Weights
from fusewire.models.blueprint import Convolution, Frames
from fusewire.models.inputs import NamedTensors
from fusewire.placement import Placement

_WINDOW = 3  # frames


class BuiltFrames:
    """Frames with their weights."""

    def __init__(self, frames: Frames, weights: Weights, place: Placement) -> None:
        self._frames = frames
        self._place = place
        self._convolutions = [(each, _linear(each, weights, place)) for each in frames.convolutions]
        self._position = weights.table(frames.position)

    def check(self, features: NDArray[np.float32]) -> None:
        """Raises InvalidInput unless the features are finite, float32, and of whole sources."""
        wanted = [self._frames.frames, self._frames.bins]
        if features.dtype != np.float32 or [*features.shape[1:]] != wanted:
            got = f"{features.dtype} of shape {list(features.shape)}"
            remedy = "compute them as the folder's preprocessor_config.json says"
            shape = f"[sources, {wanted[0]}, {wanted[1]}]"
            raise InvalidInput("features", got, f"float32 of shape {shape}", remedy)
        if not np.isfinite(features).all():
            got = "a number that is not finite"
            raise InvalidInput("features", got, "finite numbers", "correct the preprocessing")

    def tensors(self, features: NDArray[np.float32]) -> dict[str, kernels.Tensor]:
        """Returns the input of `forward`, except for positions, for features [sources, frames,
        bins]."""
        sources, frames, bins = features.shape
        rows = np.zeros((sources * frames + 1, bins), np.float32)  # the last row is the padding
        rows[:-1] = features.reshape(-1, bins)
        return {"frames": self._place.floats(rows, "features", "input")}

    def forward(self, x: kernels.Tensor, inputs: NamedTensors) -> None:
        """Writes x [rows, hidden] for whole sources. During the call it allocates memory for the
        windows and for the rows between the convolutions."""
        place, stream, hidden = self._place, self._place.stream, x.shape[1]
        rows, length = inputs["frames"], self._frames.frames
        sources = rows.shape[0] // length
        for convolution, linear in self._convolutions:
            taps = _taps(sources, length, convolution.stride)
            count, width = len(taps), rows.shape[1]
            windows = place.matrix(count, _WINDOW * width)
            for place_of_tap, tap in enumerate(taps.T):
                there = windows.columns(place_of_tap * width, width)
                kernels.gather_rows(there, rows, place.exact(tap, np.int64), stream)
            length //= convolution.stride
            rows = place.empty(count + 1, hidden)
            kernels.linear(rows.first(count), windows, linear, "gelu_erf", stream)
            outside = rows.section(count * (rows.nbytes // (count + 1)), [1, hidden], rows.dtype)
            place.write(outside, np.zeros((1, hidden), np.float32))
        every = place.exact(np.arange(count), np.int64)
        kernels.embed(x, every, inputs["positions"], rows, self._position, 1.0, stream)


def _taps(sources: int, frames: int, stride: int) -> NDArray[np.int64]:
    """Returns the rows of each window, [windows, 3], of sources one after another; for taps beyond
    the ends of a source, the row behind all sources."""
    middle = np.arange(0, frames, stride)
    within = middle[:, None] + np.arange(_WINDOW) - _WINDOW // 2
    outside = (within < 0) | (within >= frames)
    rows = within + frames * np.arange(sources)[:, None, None]
    return np.where(outside, sources * frames, rows).reshape(-1, _WINDOW)


def _linear(convolution: Convolution, weights: Weights, place: Placement) -> kernels.Linear:
    weight = weights.fp32(convolution.weight.name)
    flat = weight.swapaxes(1, 2).reshape(len(weight), -1)  # by frame, then by input
    return place.linear(flat, weights.fp32(convolution.bias.name), convolution.weight.name)
