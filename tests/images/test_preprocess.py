"""Pixel values are bitwise those of transformers' PIL processors, whatever the folder's
configuration."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.images import read_preprocessing
from fusewire.images.processor_config import preprocessing_of
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image

from tests.images import files

MODEL_TYPES = {
    "ViTImageProcessor": "vit",
    "DeiTImageProcessor": "deit",
    "CLIPImageProcessor": "clip",
    "SiglipImageProcessor": "siglip",
    "BitImageProcessor": "dinov2",
}
HALF = [0.5, 0.5, 0.5]
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

# The files of published models of all ages, as on the hub.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "google/vit-base-patch16-224": (
        "vit",
        {
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": HALF,
            "image_processor_type": "ViTImageProcessor",
            "image_std": HALF,
            "resample": 2,
            "rescale_factor": 0.00392156862745098,
            "size": {"height": 224, "width": 224},
        },
    ),
    "google/vit-base-patch16-224-in21k (first file)": (
        "vit",
        {
            "do_normalize": True,
            "do_resize": True,
            "image_mean": HALF,
            "image_std": HALF,
            "size": 224,
        },
    ),
    "facebook/deit-base-distilled-patch16-224": (
        "deit",
        {
            "crop_size": 224,
            "do_center_crop": True,
            "do_normalize": True,
            "do_resize": True,
            "feature_extractor_type": "DeiTFeatureExtractor",
            **IMAGENET,
            "resample": 3,
            "size": 256,
        },
    ),
    "openai/clip-vit-base-patch32": (
        "clip",
        {
            "crop_size": 224,
            "do_center_crop": True,
            "do_normalize": True,
            "do_resize": True,
            "feature_extractor_type": "CLIPFeatureExtractor",
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "resample": 3,
            "size": 224,
        },
    ),
    "google/siglip-base-patch16-224": (
        "siglip",
        {
            "do_convert_rgb": None,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": HALF,
            "image_processor_type": "SiglipImageProcessor",
            "image_std": HALF,
            "processor_class": "SiglipProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": {"height": 224, "width": 224},
        },
    ),
    "facebook/dinov2-base": (
        "dinov2",
        {
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            **IMAGENET,
            "image_processor_type": "BitImageProcessor",
            "resample": 3,
            "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 256},
        },
    ),
}


def folder_with(path: Path, values: dict[str, Any], model_type: str) -> Path:
    (path / "preprocessor_config.json").write_text(json.dumps(values))
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return path


def as_transformers(folder: Path, data: bytes) -> np.ndarray:
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return processor(load_image(Image.open(io.BytesIO(data))), return_tensors="np").pixel_values[0]


def assert_equal(folder: Path, model_type: str, data: bytes) -> None:
    ours = read_preprocessing(folder, model_type)(data)
    theirs = as_transformers(folder, data)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs.astype(np.float32))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_as_transformers_reads_them(name, tmp_path):
    model_type, values = PUBLISHED[name]
    folder = folder_with(tmp_path, values, model_type)
    for size in ((640, 427), (101, 333), (224, 224)):
        assert_equal(folder, model_type, files.photo(*size))


@st.composite
def configurations(draw, name: str) -> dict[str, Any]:
    """Draws a processor's configuration: any of its keys may be missing or set, and steps may be
    null."""
    side = st.integers(1, 40)
    sides = st.fixed_dictionaries({"height": side, "width": side})
    numbers = st.lists(st.floats(0.1, 0.9), min_size=3, max_size=3)
    flag = st.sampled_from([True, False, None])
    flags = ("resize", "center_crop", "rescale", "normalize", "convert_rgb")
    choices: dict[str, st.SearchStrategy] = {
        **{f"do_{step}": flag for step in flags},
        "default_to_square": flag,
        "size": st.one_of(
            sides,
            st.fixed_dictionaries({"shortest_edge": side}),
            side,
            st.lists(side, min_size=2, max_size=2),
        ),
        "resample": st.integers(0, 5),
        "rescale_factor": st.floats(0.001, 2),
        "image_mean": st.one_of(numbers, st.floats(0.1, 0.9)),
        "image_std": st.one_of(numbers, st.floats(0.1, 0.9)),
    }
    values = {"image_processor_type": name + draw(st.sampled_from(["", "Fast"]))}
    for key, choice in choices.items():
        if draw(st.booleans()):
            values[key] = draw(choice)
    crop = draw(st.one_of(sides, side))
    return {**values, "crop_size": crop}


@pytest.mark.parametrize("name", MODEL_TYPES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_file_of_a_processor_gives_transformers_pixel_values(name, tmp_path, data):
    values = data.draw(configurations(name))
    # With a ratio of sides above 83, a model would get too many pixels at 224.
    width, height = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 80))
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP"]))
    folder = folder_with(tmp_path, values, MODEL_TYPES[name])
    seed = data.draw(st.integers(0, 1 << 16))
    assert_equal(folder, MODEL_TYPES[name], files.photo(width, height, kind, seed))


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_what_transformers_saves_is_read(name, tmp_path):
    getattr(transformers, name + "Pil")().save_pretrained(tmp_path)
    assert_equal(tmp_path, MODEL_TYPES[name], files.photo(301, 187, "JPEG"))


def test_the_file_of_a_whole_processor_comes_first(tmp_path):
    nested = {"image_processor": {"image_processor_type": "ViTImageProcessor", "size": 30}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    folder_with(tmp_path, {"image_processor_type": "ViTImageProcessor", "size": 20}, "vit")
    assert read_preprocessing(tmp_path, "vit")(files.photo(50, 50)).shape == (3, 30, 30)


REFUSED = {
    "another class": (
        {"image_processor_type": "Qwen2VLImageProcessor"},
        "got 'Qwen2VL.*wanted one",
    ),
    "an unknown key": ({"crop_pct": 0.9}, "crop_pct: got 0.9, wanted one of the keys"),
    "padding": ({"do_pad": True}, "do_pad: got True, wanted null"),
    "a size of two kinds": ({"size": {"shortest_edge": 4, "longest_edge": 8}}, "size: got"),
    "a size of nothing": ({"size": {"shortest_edge": 0}}, "shortest_edge in 1..2048"),
    "a huge size": ({"size": 100_000}, "size: got 100000, wanted"),
    "a size that is a flag": ({"size": True}, "size: got True, wanted"),
    "a crop to an edge": ({"do_center_crop": True, "crop_size": {"shortest_edge": 8}}, "crop_size"),
    "a crop to no size": ({"do_center_crop": True}, "crop_size: got None"),
    "no filter": ({"resample": None}, "resample: got None"),
    "no mean": ({"image_mean": None}, "image_mean: got None"),
    "no such filter": ({"resample": 99}, r"resample: got 99, wanted one of 0 \(nearest\)"),
    "a filter in words": ({"resample": "bicubic"}, "resample: got 'bicubic'"),
    "a flag in words": ({"do_resize": "no"}, "do_resize: got 'no', wanted true or false"),
    "four channels": ({"image_mean": [0.5] * 4}, "image_mean: .* wanted 3 finite numbers"),
    "a deviation of 0": ({"image_std": [0.5, 0, 0.5]}, "image_std: .* wanted no zero"),
    "no number": ({"rescale_factor": float("nan")}, "rescale_factor: got nan"),
    "remote code": ({"auto_map": {"AutoImageProcessor": "code.Processor"}}, "auto_map: got"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_says_what_is_not_known_is_refused(what):
    values, message = REFUSED[what]
    with pytest.raises(CheckpointError, match=message):
        preprocessing_of({"image_processor_type": "ViTImageProcessor"} | values, "vit")


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such file, wanted the model's image processor"):
        read_preprocessing(tmp_path, "vit")


def test_an_image_whose_sides_differ_too_much_is_refused():
    values = {"image_processor_type": "CLIPImageProcessor"}
    with pytest.raises(InvalidInput, match="resized to 67200000 x 224 pixels"):
        preprocessing_of(values, "clip")(files.encoded(files.image(1, 1).resize((300_000, 1))))
    values |= {"do_center_crop": False}
    with pytest.raises(InvalidInput, match="given to the model with 224000 x 224 pixels"):
        preprocessing_of(values, "clip")(files.encoded(files.image(1000, 1)))
