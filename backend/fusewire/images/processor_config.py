"""Reads preprocessor_config.json strictly: a key that changes the pixel values is either supported
or refused.

A missing key has the default of the processor's class. A step that is null is left out, as in
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from fusewire.errors import CheckpointError, shown
from fusewire.images.preprocess import CHANNELS, MOST_SIDE, Preprocessing, Size
from fusewire.weights import read_json

FILE = "preprocessor_config.json"
_NESTED_FILE = "processor_config.json"  # holds it under "image_processor" in newer folders

_HALF = [0.5, 0.5, 0.5]
_SHARED: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "crop_size": None,
    "default_to_square": True,
    "image_mean": _HALF,
    "image_std": _HALF,
}
_CLIP: dict[str, Any] = {
    **_SHARED,
    "resample": Image.Resampling.BICUBIC,
    "size": {"shortest_edge": 224},
    "default_to_square": False,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# Class -> its defaults.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {
        **_SHARED,
        "resample": Image.Resampling.BILINEAR,
        "size": {"height": 224, "width": 224},
    },
    "DeiTImageProcessor": {
        **_SHARED,
        "resample": Image.Resampling.BICUBIC,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "SiglipImageProcessor": {
        **_SHARED,
        "resample": Image.Resampling.BICUBIC,
        "size": {"height": 224, "width": 224},
        "default_to_square": False,
    },
    "CLIPImageProcessor": _CLIP,
    "BitImageProcessor": _CLIP,
}
# config.json's model_type -> the class, for folders that do not name one.
_BY_MODEL_TYPE = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip_vision_model": "SiglipImageProcessor",
}

# Keys that do not affect the pixel values of an encoded image, whatever their value: decoded images
# are RGB.
_WITHOUT_EFFECT = {
    "do_convert_rgb",
    "processor_class",
    "image_processor_type",
    "feature_extractor_type",
    "data_format",
    "input_data_format",
    "device",
    "return_tensors",
    "disable_grouping",
    "use_fast",
    "_valid_processor_keys",
    "_valid_kwargs_names",
}
# Keys that affect the pixel values -> their values that do not.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "do_pad": (None, False),
    "pad_size": (None,),
    "image_seq_length": (None,),
}


def read_preprocessing(folder: Path | str, model_type: str) -> Preprocessing:
    """Returns the preprocessing that the folder's files describe. `model_type` is config.json's.
    Raises CheckpointError where they are missing, name another processor, or have unknown keys or
    values."""
    values = (read_json(folder, _NESTED_FILE) or {}).get("image_processor")
    if values is None:
        values = read_json(folder, FILE)
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{FILE}: got no such file, wanted the model's image processor; download it too"
        )
    return preprocessing_of(values, model_type)


def preprocessing_of(values: Mapping[str, Any], model_type: str) -> Preprocessing:
    """`read_preprocessing` for the content of the file."""
    defaults = _DEFAULTS[_class_of(values, model_type)]
    known = defaults.keys() | _HARMLESS.keys() | _WITHOUT_EFFECT
    for key, value in values.items():
        if key not in known:
            raise _fault(key, value, f"one of the keys {', '.join(sorted(known))}")
        if key in _HARMLESS and value not in _HARMLESS[key]:
            raise _fault(key, value, "null")
    settings = {**defaults, **values}
    resized, cropped, rescaled, normalised = (
        _flag(settings, f"do_{step}") for step in ("resize", "center_crop", "rescale", "normalize")
    )
    return Preprocessing(
        size=_size(settings) if resized else None,
        resample=_resample(settings["resample"]) if resized else Image.Resampling.NEAREST,
        crop=_sides("crop_size", settings["crop_size"]) if cropped else None,
        rescale_factor=_number(settings, "rescale_factor") if rescaled else None,
        mean=_by_channel(settings, "image_mean") if normalised else None,
        std=_by_channel(settings, "image_std") if normalised else None,
    )


def _class_of(values: Mapping[str, Any], model_type: str) -> str:
    name = values.get("image_processor_type")
    key = "image_processor_type"
    if name is None and (older := values.get("feature_extractor_type")) is not None:
        key = "feature_extractor_type"
        name = str(older).replace("FeatureExtractor", "ImageProcessor")
    if name is None:
        name = _BY_MODEL_TYPE.get(model_type)
    plain = str(name).removesuffix("Fast").removesuffix("Pil")
    if plain not in _DEFAULTS:
        raise _fault(key, values.get(key), f"one of {', '.join(_DEFAULTS)}")
    return plain


def _size(settings: Mapping[str, Any]) -> Size:
    size = settings["size"]
    if _is_side(size) and not _flag(settings, "default_to_square"):
        return Size(shortest_edge=size)
    if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
        if _is_side(size["shortest_edge"]):
            return Size(shortest_edge=size["shortest_edge"])
        raise _fault("size", size, f"a shortest_edge in 1..{MOST_SIDE}")
    return Size(*_sides("size", size))


def _sides(key: str, value: Any) -> tuple[int, int]:
    """Returns (height, width) from a dict of both, a list of both, or one number for both."""
    if isinstance(value, dict) and value.keys() == {"height", "width"}:
        sides = [value["height"], value["width"]]
    else:
        sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(map(_is_side, sides)):
        wanted = f'{{"height": ..., "width": ...}} in 1..{MOST_SIDE}'
        raise _fault(key, value, wanted if key == "crop_size" else f"{wanted}, or a shortest_edge")
    return sides[0], sides[1]


def _is_side(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_SIDE


def _resample(value: Any) -> Image.Resampling:
    if type(value) not in (int, Image.Resampling) or value not in list(Image.Resampling):
        kinds = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in Image.Resampling)
        raise _fault("resample", value, f"one of {kinds}")
    return Image.Resampling(value)


def _by_channel(settings: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value = settings[key]
    numbers = value if isinstance(value, list) else [value] * CHANNELS
    if len(numbers) != CHANNELS or not all(map(_is_finite, numbers)):
        raise _fault(key, value, f"{CHANNELS} finite numbers")
    if key == "image_std" and 0 in numbers:
        raise _fault(key, value, "no zero")
    return tuple(map(float, numbers))


def _number(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if not _is_finite(value):
        raise _fault(key, value, "a finite number")
    return float(value)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and -1e30 < value < 1e30


def _flag(settings: Mapping[str, Any], key: str) -> bool:
    value = settings[key]
    if value is not None and type(value) is not bool:
        raise _fault(key, value, "true or false")
    return bool(value)


def _fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{FILE}: {key[:64]}: got {shown(got)}, wanted {wanted}; these images cannot be read "
        "as the model's processor reads them"
    )
