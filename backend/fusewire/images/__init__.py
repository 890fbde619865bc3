"""Converts encoded images to pixel values, as transformers' image processors compute them. Uses no
kernels and no model."""

from fusewire.errors import ConfigurationError

try:
    from PIL.Image import Image as PILImage
except ImportError:
    raise ConfigurationError(
        "pillow: got no such package, wanted it to read images; run pip install 'fusewire[images]'"
    ) from None

from fusewire.images.decode import decode, open_image, upright
from fusewire.images.preprocess import Preprocessing
from fusewire.images.processor_config import read_preprocessing
from fusewire.images.workers import ImageWorkers

__all__ = [
    "ImageWorkers",
    "PILImage",
    "Preprocessing",
    "decode",
    "open_image",
    "read_preprocessing",
    "upright",
]
