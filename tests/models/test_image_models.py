"""Image encoders give transformers' outputs, directly from the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, ConfigurationError, InvalidInput
from fusewire.models import load_image_model
from fusewire.models.registry import IMAGE_ENCODERS, check_config

from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 42,
    "patch_size": 14,
    "num_labels": 5,
}
DENSE = SMALL | {"intermediate_size": 80}

# name -> (class with a label head, its configuration)
LABELS = {
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig(**DENSE)),
    "vit of wide images": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig(**DENSE | {"image_size": [28, 42]}),
    ),
    "deit of high images": (
        transformers.DeiTForImageClassification,
        transformers.DeiTConfig(**DENSE | {"image_size": [70, 28]}),
    ),
    "vit without biases of q, k and v": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig(**DENSE | {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
    ),
    "deit": (transformers.DeiTForImageClassification, transformers.DeiTConfig(**DENSE)),
    "deit with a teacher": (
        transformers.DeiTForImageClassificationWithTeacher,
        transformers.DeiTConfig(**DENSE),
    ),
    "dinov2": (transformers.Dinov2ForImageClassification, transformers.Dinov2Config(**SMALL)),
    "dinov2 with a gated feed-forward": (
        transformers.Dinov2ForImageClassification,
        transformers.Dinov2Config(**SMALL | {"use_swiglu_ffn": True}),
    ),
}


def saved(folder: Path, kind: Any, config: Any, seed: int = 0) -> Any:
    """Saves a random model in the folder, whose weights are all different from zero and one."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    return model


def pixels(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((3, *size), np.float32) for size in sizes]


def sizes_for(config: Any) -> list[tuple[int, int]]:
    """Returns image sizes: transformers interpolates the positions of square grids only."""
    if isinstance(size := config.image_size, int):
        return [(size, size), (size, size), (70, 28), (43, 44), (56, 56)]
    return [tuple(size), tuple(size)]


def theirs(model: Any, image: np.ndarray) -> Any:
    """Returns transformers' output for one image, with interpolated positions where necessary."""
    config = model.config
    square = isinstance(getattr(config, "image_size", 0), int)
    options = {} if config.model_type == "dinov2" else {"interpolate_pos_encoding": square}
    with torch.inference_mode():
        return model(torch.from_numpy(image)[None], **options)


@pytest.mark.parametrize("name", LABELS)
def test_logits_are_those_of_transformers(name, tmp_path):
    model = saved(tmp_path, *LABELS[name])
    ours = load_image_model(tmp_path, "label")
    images = pixels(*sizes_for(model.config))
    logits = ours.results(ours.encode(images))
    assert logits.shape == (len(images), 5)
    for found, image in zip(logits, images, strict=True):
        wanted = theirs(model, image).logits[0].numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2"])
def test_the_embedding_is_the_class_token_of_the_last_hidden_state(name, tmp_path):
    kind = {
        "vit": transformers.ViTModel,
        "deit": transformers.DeiTModel,
        "dinov2": transformers.Dinov2Model,
    }[name]
    model = saved(tmp_path, kind, LABELS[name][1])
    ours = load_image_model(tmp_path, "embed")
    images = pixels((42, 42), (28, 56))
    encoded = ours.encode(images, every_token=True)
    hidden = ours.place.numpy(encoded.hidden)
    for index, image in enumerate(images):
        wanted = theirs(model, image).last_hidden_state[0].numpy()
        begin, end = encoded.cu_seqlens[index : index + 2]
        np.testing.assert_allclose(hidden[begin:end], wanted, rtol=0, atol=MODEL_FP32)
        found = ours.results(encoded)[index]
        np.testing.assert_allclose(found, wanted[0], rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("name", LABELS)
def test_the_tokens_that_the_head_reads_are_those_among_all(name, tmp_path):
    saved(tmp_path, *LABELS[name])
    ours = load_image_model(tmp_path, "label")
    images = pixels((42, 42), (28, 56), (14, 14))
    read, every = ours.encode(images), ours.encode(images, every_token=True)
    hidden, whole = ours.place.numpy(read.hidden), ours.place.numpy(every.hidden)
    for begin, end, first in zip(
        read.cu_seqlens, read.cu_seqlens[1:], every.cu_seqlens, strict=False
    ):
        assert np.array_equal(hidden[begin:end], whole[first : first + end - begin])
    assert np.array_equal(ours.results(read), ours.results(every))


VISION = DENSE | {"projection_dim": 24}
TEXT = {key: 32 for key in ("hidden_size", "intermediate_size", "vocab_size")}
CLIP = {
    "both towers": (
        transformers.CLIPModel,
        transformers.CLIPConfig(
            vision_config=VISION,
            text_config=TEXT | {"num_hidden_layers": 1, "bos_token_id": 0, "eos_token_id": 2},
            projection_dim=24,
        ),
    ),
    "the tower of images": (
        transformers.CLIPVisionModelWithProjection,
        transformers.CLIPVisionConfig(**VISION),
    ),
    "another activation": (
        transformers.CLIPVisionModelWithProjection,
        transformers.CLIPVisionConfig(**VISION | {"hidden_act": "gelu"}),
    ),
}


@pytest.mark.parametrize("name", CLIP)
def test_clips_image_embeddings_are_those_of_transformers(name, tmp_path):
    model = saved(tmp_path, *CLIP[name])
    ours = load_image_model(tmp_path, "embed")
    images = pixels((42, 42), (28, 56), (50, 42))
    found = ours.results(ours.encode(images))
    assert found.shape == (3, 24)
    for row, image in zip(found, images, strict=True):
        if name == "both towers":
            with torch.inference_mode():
                batch = torch.from_numpy(image)[None]
                features = model.get_image_features(batch, interpolate_pos_encoding=True)
            wanted = features.pooler_output[0].numpy()
        else:
            wanted = theirs(model, image).image_embeds[0].numpy()
        np.testing.assert_allclose(row, wanted, rtol=0, atol=MODEL_FP32)


def test_a_model_without_a_head_for_the_task_is_refused(tmp_path):
    saved(tmp_path, *CLIP["the tower of images"])
    with pytest.raises(
        CheckpointError, match=r"label: got a clip_vision_model model, .* wanted one of embed"
    ):
        load_image_model(tmp_path, "label")
    with pytest.raises(
        ConfigurationError, match="task: got 'classify', wanted one of label, embed"
    ):
        load_image_model(tmp_path, "classify")


def test_an_image_has_the_same_logits_in_any_batch(tmp_path):
    saved(tmp_path, *LABELS["vit"])
    model = load_image_model(tmp_path, "label")
    images = pixels(*[(42, 42), (14, 98)] * 9)
    together = model.results(model.encode(images))
    for image, found in zip(images, together, strict=True):
        alone = model.results(model.encode([image]))[0]
        np.testing.assert_allclose(found, alone, rtol=0, atol=BATCHED_VERSUS_ALONE)


BAD = {
    "grey": (np.zeros((1, 42, 42), np.float32), r"got the shape \[1, 42, 42\], wanted \[3,"),
    "channels last": (np.zeros((42, 42, 3), np.float32), r"wanted \[3, height, width\]"),
    "no channels": (np.zeros((42, 42), np.float32), r"got the shape \[42, 42\]"),
    "less than a patch": (np.zeros((3, 13, 42), np.float32), "got 13 x 42 pixels"),
    "too many patches": (np.zeros((3, 14 * 129, 14 * 128), np.float32), "1 to 16384 patches"),
    "NaN": (np.full((3, 42, 42), np.nan, np.float32), "not finite"),
    "infinity beyond whole patches": (
        np.pad(np.zeros((3, 42, 42), np.float32), (0, 1), constant_values=-np.inf)[:3],
        "not finite",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_pixel_values_that_are_no_image_are_refused(what, tmp_path):
    saved(tmp_path, *LABELS["vit"])
    model = load_image_model(tmp_path, "label")
    image, message = BAD[what]
    with pytest.raises(InvalidInput, match=message) as caught:
        model.encode([*pixels((42, 42)), image])
    assert caught.value.field == "pixel_values"
    with pytest.raises(InvalidInput, match="got no image"):
        model.encode([])


@pytest.mark.parametrize("model_type", IMAGE_ENCODERS)
def test_a_configuration_is_known_before_its_weights_are_fetched(model_type):
    check_config({"model_type": model_type, "hidden_size": 48, "num_attention_heads": 4})


REFUSED = {
    "num_channels": (1, "num_channels: got 1, wanted 3"),
    "image_size": ([42], r"image_size: got \[42\], wanted a whole number in 14.*, or two of them"),
    "patch_size": (64, "image_size: got 42, wanted a whole number in 64"),
    "hidden_act": ("mish", "hidden_act: got 'mish'"),
    "num_attention_heads": (5, "num_attention_heads: got 5, wanted a divisor"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_configuration_that_is_not_supported_is_refused(key, tmp_path):
    saved(tmp_path, *LABELS["vit"])
    value, message = REFUSED[key]
    config = transformers.ViTConfig(**DENSE).to_dict() | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_image_model(tmp_path, "label")
