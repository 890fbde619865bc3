"""Models of images and texts give transformers' outputs, directly from the folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.models import load_image_model, load_text_tower
from fusewire.models.config import Config
from fusewire.models.registry import IMAGE_ENCODERS, TEXT_TOWERS

from tests.models.test_image_models import DENSE, pixels, saved
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32

TEXT = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "vocab_size": 50,
}
CLIP_TEXT = TEXT | {"max_position_embeddings": 20, "bos_token_id": 47, "pad_token_id": 48}


def clip(end: int, **text):
    return transformers.CLIPConfig(
        vision_config=DENSE,
        text_config=CLIP_TEXT | {"eos_token_id": end} | text,
        projection_dim=24,
        num_labels=5,
    )


def siglip(vision=None, **text):
    return transformers.SiglipConfig(
        vision_config=DENSE | (vision or {}),
        text_config=TEXT | {"projection_size": 48} | text,
        num_labels=5,
    )


BOTH = {
    "clip": (transformers.CLIPModel, clip(48)),
    "clip with the old end token": (transformers.CLIPModel, clip(2)),
    "clip with another activation": (transformers.CLIPModel, clip(48, hidden_act="gelu")),
    "siglip": (transformers.SiglipModel, siglip()),
    "siglip with quick_gelu": (
        transformers.SiglipModel,
        siglip({"hidden_act": "quick_gelu"}, hidden_act="quick_gelu"),
    ),
}
LABELS = {
    "clip": (transformers.CLIPForImageClassification, clip(48)),
    "siglip": (transformers.SiglipForImageClassification, siglip()),
}


def texts_of(name: str) -> list[np.ndarray]:
    """Returns texts padded to one length, as the tokenizer of such a model pads them. 49 is the
    highest id."""
    rng = np.random.default_rng(1)
    if name.startswith("siglip"):
        return [rng.integers(0, 50, 64) for _ in range(5)]
    texts = [rng.integers(3, 47, 20) for _ in range(5)]
    end = 49 if "old" in name else 48
    for ids, length in zip(texts, (1, 2, 9, 19, 20), strict=True):
        ids[length - 1 :] = end
    return texts


def features(given) -> np.ndarray:
    return given.pooler_output.numpy()


@pytest.mark.parametrize("name", BOTH)
def test_logits_of_images_and_texts_are_those_of_transformers(name, tmp_path):
    model = saved(tmp_path, *BOTH[name])
    images, texts = pixels((42, 42), (42, 42), (28, 56)), texts_of(name)
    ours, tower = load_image_model(tmp_path, "embed"), load_text_tower(tmp_path)
    of_images, of_texts = ours.results(ours.encode(images)), tower.embeddings(texts)
    ids = torch.from_numpy(np.stack(texts))
    with torch.inference_mode():
        wanted = features(model.get_text_features(input_ids=ids))
        np.testing.assert_allclose(of_texts, wanted, rtol=0, atol=MODEL_FP32)
        logits = tower.logits_per_image(of_images, of_texts)
        assert logits.shape == (3, 5)
        for row, image in zip(logits, images, strict=True):
            theirs = model(
                input_ids=ids,
                pixel_values=torch.from_numpy(image)[None],
                interpolate_pos_encoding=True,
            )
            wanted = theirs.logits_per_image[0].numpy()
            np.testing.assert_allclose(row, wanted, rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("name", LABELS)
def test_a_classifier_reads_the_mean_of_the_patches(name, tmp_path):
    model = saved(tmp_path, *LABELS[name])
    ours = load_image_model(tmp_path, "label")
    images = pixels((42, 42), (42, 42))
    logits = ours.results(ours.encode(images))
    with torch.inference_mode():
        wanted = model(torch.from_numpy(np.stack(images))).logits.numpy()
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=MODEL_FP32)


def test_siglips_encoder_of_images_alone(tmp_path):
    model = saved(
        tmp_path,
        transformers.SiglipVisionModel,
        transformers.SiglipVisionConfig(**DENSE),
    )
    ours = load_image_model(tmp_path, "embed")
    images = pixels((42, 42), (28, 56))
    encoded = ours.encode(images)
    hidden = ours.place.numpy(encoded.hidden)
    for index, image in enumerate(images):
        with torch.inference_mode():
            wanted = model(torch.from_numpy(image)[None], interpolate_pos_encoding=True)
        begin, end = encoded.cu_seqlens[index : index + 2]
        theirs = wanted.last_hidden_state[0].numpy()
        np.testing.assert_allclose(hidden[begin:end], theirs, rtol=0, atol=MODEL_FP32)
        found = ours.results(encoded)[index]
        np.testing.assert_allclose(found, features(wanted)[0], rtol=0, atol=MODEL_FP32)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_an_image_and_a_text_have_the_same_embedding_in_any_batch(name, tmp_path):
    saved(tmp_path, *BOTH[name])
    ours, tower = load_image_model(tmp_path, "embed"), load_text_tower(tmp_path)
    images = pixels(*[(42, 42), (14, 98)] * 9)
    together = ours.results(ours.encode(images))
    for image, found in zip(images, together, strict=True):
        alone = ours.results(ours.encode([image]))[0]
        np.testing.assert_allclose(found, alone, rtol=0, atol=BATCHED_VERSUS_ALONE)
    texts = texts_of(name) * 60
    for text, found in zip(texts, tower.embeddings(texts), strict=True):
        np.testing.assert_allclose(
            found, tower.embeddings([text])[0], rtol=0, atol=BATCHED_VERSUS_ALONE
        )


@pytest.mark.parametrize("kind", [transformers.CLIPModel, transformers.SiglipModel])
@pytest.mark.parametrize("rows", [IMAGE_ENCODERS, TEXT_TOWERS])
def test_a_configuration_that_leaves_sizes_out_has_those_of_transformers(kind, rows):
    with torch.device("meta"):
        config = kind.config_class()
        stored = {name: tuple(each.shape) for name, each in kind(config).state_dict().items()}
    values = {"model_type": config.model_type, "text_config": {}, "vision_config": {}}
    blueprint = rows[config.model_type].blueprint(Config(values))
    for name, shape in blueprint.tensors("embed").items():
        assert shape in (stored.get(name), stored.get(f"{blueprint.prefix}.{name}")), name


def test_what_an_old_folder_repeats_goes_before(tmp_path):
    """CLIPConfig's own rule for `text_config_dict`: even its defaults take precedence over
    text_config."""
    model = saved(tmp_path, *BOTH["clip"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config_dict"] = dict(config["text_config"])
    config["text_config"]["num_attention_heads"] = 10
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = torch.from_numpy(np.stack(texts_of("clip")))
    with torch.inference_mode():
        wanted = features(model.get_text_features(input_ids=ids))
    found = load_text_tower(tmp_path).embeddings(texts_of("clip"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=MODEL_FP32)


BAD_TEXTS = {
    "no text": ([], "got no text"),
    "an empty text": ([np.zeros(0, np.int64)], "got an empty text"),
    "no end": ([np.full(3, 7)], "got a text without its end token, wanted token 48"),
    "too long": ([np.append(np.full(20, 7), 48)], "got 21 tokens, wanted at most 20"),
    "an unknown id": ([np.array([50, 48])], r"got 50, wanted 0\.\.49"),
}


@pytest.mark.parametrize("what", BAD_TEXTS)
def test_token_ids_that_are_no_text_are_refused(what, tmp_path):
    saved(tmp_path, *BOTH["clip"])
    tower = load_text_tower(tmp_path)
    texts, message = BAD_TEXTS[what]
    with pytest.raises(InvalidInput, match=message) as caught:
        tower.embeddings(texts)
    assert caught.value.field == "input_ids"


def test_a_model_without_texts_is_refused(tmp_path):
    saved(tmp_path, transformers.SiglipVisionModel, transformers.SiglipVisionConfig(**DENSE))
    with pytest.raises(CheckpointError, match="'siglip_vision_model', wanted one of clip, siglip"):
        load_text_tower(tmp_path)


def test_a_classifier_has_no_texts(tmp_path):
    saved(tmp_path, *LABELS["siglip"])
    with pytest.raises(CheckpointError, match=r"missing: .*token_embedding"):
        load_text_tower(tmp_path)
