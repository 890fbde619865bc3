"""An encoder of images for lists of images, which threads decode while the device computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.api.arguments import check_batch_size, listed
from fusewire.errors import InvalidInput, type_name
from fusewire.images import ImageWorkers, PILImage, read_preprocessing, upright
from fusewire.models import load_image_model
from fusewire.opening import folder_for
from fusewire.placement import Placement
from fusewire.settings import EngineSettings

Image = bytes | str | Path | PILImage
Read = Callable[[], list[NDArray[np.float32]]]

_BATCH = 32  # images computed together by default


class ImageFolder:
    """A model folder opened for one task: the base of the classes for images."""

    _task: ClassVar[str]

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        quantize: Literal["none", "int8", "fp8"] = "none",
        quantize_skip: Sequence[str] = (),
        revision: str | None = None,
    ) -> None:
        """Loads the model.

        Args:
            model: A model folder, or an id on Hugging Face.
            device: `auto` (the first GPU where there is one, else the CPU), `cpu`, `cuda` or
                `cuda:<index>`.
            dtype: Precision of the computation; `auto` is float32 on the CPU and float16 on a GPU.
                On the CPU `bfloat16` is the storage format of the matrices only, and the
                computation is in float32.
            quantize: Format of the weight matrices of the model's layers: `none` (that of
                `dtype`), `int8`, on Hopper GPUs `fp8`.
            quantize_skip: Names of matrices that are not quantised, as `fusewire import` selects
                and prints them.
            revision: Branch, tag or commit of a Hugging Face id.

        Raises:
            CheckpointError: The folder cannot be read, or asks for something not supported.
            ConfigurationError: There is no such device, dtype or format here.
        """
        self._folder = folder_for(type(self), model, revision)
        place = Placement(device, dtype, quantize, quantize_skip)
        self._model = load_image_model(self._folder, self._task, place)
        place.check_skipped()
        self._model.record_forwards(EngineSettings().max_batch_tokens)
        preprocessing = read_preprocessing(self._folder, self._model.config["model_type"])
        self._workers = ImageWorkers(preprocessing)
        self._lock = threading.Lock()
        self._loaded()

    def _loaded(self) -> None:
        """Loads what a subclass needs in addition."""

    @property
    def device(self) -> str:
        """`cpu` or `cuda:<index>`."""
        return self._model.place.device

    def _results(
        self, images: Image | Sequence[Image], batch_size: int | None
    ) -> NDArray[np.float32]:
        """Returns the head's results for one or more images, [n, values]. Raises InvalidInput with
        the index of the image."""
        images = [images] if isinstance(images, Image) else listed("images", images, "images")
        if not images:
            raise InvalidInput("images", "none", "1 or more", "give an image")
        check_batch_size(batch_size)
        size = _BATCH if batch_size is None else batch_size
        several = len(images) > 1
        batches = [images[begin : begin + size] for begin in range(0, len(images), size)]
        found = []
        with self._lock:
            read = self._start(batches[0], 0, several)
            for index in range(1, len(batches) + 1):
                pixels = read()
                if index < len(batches):
                    read = self._start(batches[index], index * size, several)
                found.append(self._model.results(self._model.encode(pixels)))
        return np.concatenate(found)

    def _start(self, batch: Sequence[Image], first: int, several: bool) -> Read:
        read = [_read(each, first + at) for at, each in enumerate(batch)]
        return self._workers.start(read, first=first if several else None)


def _read(image: Image, index: int) -> bytes | PILImage:
    """Returns the encoded image, or a copy of a decoded one."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, PILImage):
        try:
            return upright(image)
        except InvalidInput as error:
            raise error.at(f"image {index}") from None
    if not isinstance(image, (str, Path)):
        got, wanted = f"{type_name(image)} at {index}", "a path, bytes of a file or a PIL image"
        raise InvalidInput("images", got, wanted, "convert it: PIL.Image.fromarray(pixels)")
    try:
        return Path(image).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: of a path with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        got = f"{str(image)[:80]!r} at {index}, which cannot be read ({reason})"
        raise InvalidInput("images", got, "a file", "correct its path") from None
