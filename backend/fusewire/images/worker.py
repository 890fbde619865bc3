"""The program of a process that reads images for one model. Takes encoded bytes, returns pixel
values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from fusewire.images.decode import MOST_PIXELS
from fusewire.images.preprocess import MOST_SIDE, Preprocessing
from fusewire.worker_processes.program import Loaded, serve

# Memory of a call, beyond that of the loaded worker: 20 bytes per pixel while a lossless WebP is
# decoded, 24 per pixel of the model's input (its values and intermediate results), and the file.
CALL_BYTES = 20 * MOST_PIXELS + 24 * MOST_SIDE**2 + (1 << 28)


def main(owner: int) -> None:
    """`owner`: process id of the owner."""
    serve(owner, _load)


def _load(configuration: Mapping[str, Any]) -> Loaded:
    preprocessing = Preprocessing.of_values(configuration)
    Image.init()  # loads its modules now, while files may still be opened

    def call(message: Mapping[str, Any]) -> tuple[Any, memoryview]:
        pixels = preprocessing(message["body"].tobytes())
        return pixels.shape, pixels.data.cast("B")

    return Loaded({}, call, CALL_BYTES)
