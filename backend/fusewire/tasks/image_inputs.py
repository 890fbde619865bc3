"""Checks types and shapes of the tensors of a request to an image model, and splits them into rows.
An InvalidInput names the field, its value, the allowed values and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput, type_name
from fusewire.images import Preprocessing, open_image
from fusewire.tasks.contract import contract
from fusewire.tasks.inputs import decoded, row_of
from fusewire.tasks.rows import ImageRow, PixelRow, Row, TextRow

if TYPE_CHECKING:
    from fusewire.models import ImageTextModel

# Total pixels of a request's images after preprocessing, 12 bytes each.
MOST_MODEL_PIXELS = 1 << 26
# Total pixels of their files: some ten seconds of decoding on two cores.
MOST_FILE_PIXELS = 1 << 29
_SOURCES = ("image", "pixel_values", "text_input")


class ImageInputs:
    """Reads the inputs that a task and its model accept."""

    def __init__(self, task: str, model: ImageTextModel, preprocessing: Preprocessing) -> None:
        self._task = task
        self._model = model
        self._preprocessing = preprocessing
        self._known = [tensor.name for tensor in contract(task, images=True)[0]]

    def rows(self, inputs: Mapping[str, NDArray[Any]]) -> list[Row]:
        """Returns the request's rows, one or more, in order. Reads the headers of encoded
        images."""
        sources = [name for name in _SOURCES if name in self._known]
        for name in inputs:
            if name not in self._known:
                wanted = f"one of {', '.join(self._known)} for {self._task} of images"
                raise InvalidInput(name, "an input", wanted, "leave it out")
        given = [name for name in sources if name in inputs]
        if len(given) != 1:
            got = f"{' and '.join(given)} together" if given else f"neither {_either(sources)}"
            remedy = "send one of them" if given else "send an image"
            raise InvalidInput(given[0] if given else "image", got, "one of them", remedy)
        if given == ["pixel_values"]:
            return self._pixels(inputs["pixel_values"])
        if given == ["text_input"]:
            return self._texts(inputs["text_input"])
        return self._images(inputs["image"])

    def _images(self, array: NDArray[Any]) -> list[Row]:
        found: list[Row] = []
        in_files = given = 0
        for index, data in enumerate(_column("image", array, "an encoded image")):
            if not isinstance(data, bytes):
                raise InvalidInput(
                    "image",
                    type_name(data),
                    "bytes of a file",
                    "send JPEG, PNG or WebP files",
                    row_of(index, array),
                )
            try:
                image = open_image(data)
                width, height = self._given_to_the_model(image.width, image.height)
                tokens = self._model.tokens_of(height, width)
            except InvalidInput as error:
                raise error.in_row(row_of(index, array)) from None
            found.append(ImageRow(data, image.width * image.height, tokens))
            in_files += image.width * image.height
            if in_files > MOST_FILE_PIXELS:
                got, wanted = "images of more pixels together", f"at most {MOST_FILE_PIXELS}"
                raise InvalidInput("image", got, wanted, "send fewer at once")
            given += height * width
            _check_pixels("image", given)
        return found

    def _given_to_the_model(self, width: int, height: int) -> tuple[int, int]:
        """Returns (width, height) after preprocessing. Rotating the image upright may swap them."""
        if self._preprocessing.crop is not None:
            height, width = self._preprocessing.crop
        elif self._preprocessing.size is not None:
            width, height = self._preprocessing.size.of(width, height)
        return width, height

    def _pixels(self, array: NDArray[Any]) -> list[Row]:
        field = "pixel_values"
        if array.dtype != np.float32:
            raise InvalidInput(field, f"dtype {array.dtype}", "dtype float32", "convert to float32")
        if array.ndim != 4 or array.shape[1] != 3 or not array.shape[0]:
            got, wanted = f"shape {list(array.shape)}", "shape [n, 3, height, width]"
            raise InvalidInput(field, got, wanted, "send RGB images, channels first")
        self._model.tokens_of(*array.shape[2:])
        _check_pixels(field, array.size // 3)
        for index, image in enumerate(array):
            if not np.isfinite(image).all():
                got, remedy = "a number that is not finite", "correct the preprocessing"
                raise InvalidInput(field, got, "finite numbers", remedy, row_of(index, array))
        # The server may reuse the tensor's memory before the images are computed.
        return [PixelRow(image.copy()) for image in array]

    def _texts(self, array: NDArray[Any]) -> list[Row]:
        if self._model.texts is None:
            raise InvalidInput(
                "text_input",
                "a text for a model that reads no texts",
                "image or pixel_values",
                "send images; texts need a CLIP or SigLIP model with tokenizer.json in its folder",
            )
        values = _column("text_input", array, "a text")
        return [
            TextRow(decoded("text_input", value, row_of(index, array)))
            for index, value in enumerate(values)
        ]


def _column(field: str, array: NDArray[Any], what: str) -> NDArray[Any]:
    if array.dtype.kind not in "OSU":
        raise InvalidInput(field, f"dtype {array.dtype}", "strings (BYTES)", f"send {what}")
    if array.ndim != 2 or array.shape[1] != 1:
        got = f"shape {list(array.shape)}"
        raise InvalidInput(field, got, "shape [n, 1]", f"send {what} a row")
    if len(array) == 0:
        raise InvalidInput(field, "nothing", "at least 1", f"send {what}")
    column: NDArray[Any] = array[:, 0]
    return column


def _check_pixels(field: str, pixels: int) -> None:
    if pixels > MOST_MODEL_PIXELS:
        got = f"images that the model is given with {pixels} pixels or more together"
        raise InvalidInput(field, got, f"at most {MOST_MODEL_PIXELS}", "send fewer at once")


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} nor {names[-1]}"
