"""ImageClassifier and ImageEmbedder give what transformers' pipelines give for the same files."""

from __future__ import annotations

from pathlib import Path

import fusewire
import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from PIL import Image

from tests.images import files
from tests.models.test_image_models import CLIP, LABELS, saved
from tests.tolerance import BATCHED_VERSUS_ALONE, MODEL_FP32, PIPELINE_SCORE

PROCESSORS = {
    "vit": "ViTImageProcessorPil",
    "deit": "DeiTImageProcessorPil",
    "deit with a teacher": "DeiTImageProcessorPil",
    "dinov2": "BitImageProcessorPil",
}


def folder_of(path, name):
    model = saved(path, *LABELS[name])
    processor = getattr(transformers, PROCESSORS[name])()
    processor.size = {"height": 42, "width": 42}
    processor.crop_size = {"height": 42, "width": 42}
    processor.save_pretrained(path)
    return model


@pytest.fixture
def photos(tmp_path):
    """Paths of files of every format, one of them rotated."""
    kinds = {"a.jpg": ("JPEG", 6), "b.png": ("PNG", None), "c.webp": ("WEBP", 3)}
    paths = []
    for seed, (name, (kind, orientation)) in enumerate(kinds.items()):
        image = files.image(60 + 9 * seed, 45, seed=seed)
        (tmp_path / name).write_bytes(files.encoded(image, kind, orientation))
        paths.append(str(tmp_path / name))
    return paths


def expect_same_labels(ours, theirs):
    """Of each image the labels in one order, and scores as near as a pipeline's."""
    for found, wanted in zip(ours, theirs, strict=True):
        assert [each["label"] for each in found] == [each["label"] for each in wanted]
        np.testing.assert_allclose(
            [each["score"] for each in found],
            [each["score"] for each in wanted],
            rtol=0,
            atol=PIPELINE_SCORE,
        )


@pytest.mark.parametrize("name", PROCESSORS)
def test_labels_and_scores_are_those_of_the_pipeline(name, tmp_path, photos):
    folder_of(tmp_path, name)
    classifier = fusewire.ImageClassifier(tmp_path, device="cpu")
    ours = classifier(photos, batch_size=2)
    theirs = transformers.pipeline("image-classification", str(tmp_path))(photos)
    expect_same_labels(ours, theirs)
    assert classifier(photos[1], top_k=2) == ours[1][:2]


def test_embeddings_are_clips(tmp_path, photos):
    model = saved(tmp_path, *CLIP["the tower of images"])
    sizes = {"size": {"shortest_edge": 42}, "crop_size": 42}
    processor = transformers.CLIPImageProcessorPil(**sizes)
    processor.save_pretrained(tmp_path)
    images = [transformers.image_utils.load_image(path) for path in photos]
    with torch.inference_mode():
        wanted = model(**processor(images, return_tensors="pt")).image_embeds.numpy()
    embedder = fusewire.ImageEmbedder(tmp_path, device="cpu")
    found = embedder.encode(photos)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=MODEL_FP32)
    unit = embedder.encode(Path(photos[0]).read_bytes(), normalize_embeddings=True)
    np.testing.assert_allclose(unit, found[0] / np.linalg.norm(found[0]), rtol=0, atol=1e-6)


def test_what_is_no_image_is_named(tmp_path, photos):
    folder_of(tmp_path, "vit")
    classifier = fusewire.ImageClassifier(tmp_path, device="cpu")
    with pytest.raises(InvalidInput, match=r"^image 1: image: got 4 bytes"):
        classifier([photos[0], b"text", photos[1]])
    with pytest.raises(InvalidInput, match=r"'nowhere\.png' at 1, which cannot be read"):
        classifier([photos[0], "nowhere.png"])
    png = files.photo(9, 9)
    for many in (33, 34):  # the last batch of 32, of one image and of two
        with pytest.raises(InvalidInput, match=f"^image {many - 1}: image: got 4 bytes"):
            classifier([*[png] * (many - 1), b"text"])
    with pytest.raises(InvalidInput, match=r"damaged or truncated PNG file .*\(.* the file\)"):
        classifier(png[:9])
    with pytest.raises(InvalidInput, match=r"which cannot be read \(embedded null byte\)"):
        classifier("a\0b")
    for wrong in (0, "2", 2.0):
        with pytest.raises(InvalidInput, match=r"batch_size: got .*, wanted a whole number"):
            classifier(png, batch_size=wrong)
    with pytest.raises(
        InvalidInput, match="got int at 0, wanted a path, bytes of a file or a PIL image"
    ):
        classifier([3])
    with pytest.raises(InvalidInput, match="images: got none"):
        classifier([])
    assert len(classifier(photos)) == 3


def test_pil_images_are_images(tmp_path, photos):
    """Rotated as their EXIF says, whatever their mode, and left as they were."""
    folder_of(tmp_path, "vit")
    embedder = fusewire.ImageEmbedder(tmp_path, device="cpu")
    rotated = files.encoded(files.image(60, 40), "JPEG", 6)
    (tmp_path / "rotated.jpg").write_bytes(rotated)
    opened = Image.open(tmp_path / "rotated.jpg")
    made = files.image(50, 40, "RGBA")
    given = [opened, made, files.image(30, 30, "P"), opened]
    encoded = [rotated, *(files.encoded(each) for each in given[1:3]), rotated]
    found, wanted = embedder.encode(given), embedder.encode(encoded)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BATCHED_VERSUS_ALONE)
    assert (opened.size, made.mode) == ((60, 40), "RGBA")
    np.testing.assert_array_equal(embedder.encode(made), wanted[1])


def test_pil_images_that_cannot_be_read_are_named(tmp_path, photos):
    folder_of(tmp_path, "vit")
    embedder = fusewire.ImageEmbedder(tmp_path, device="cpu")
    broken = tmp_path / "broken.png"
    broken.write_bytes(files.photo(60, 60)[:200])
    bad = {
        "got a damaged or truncated PNG file": Image.open(broken),
        "got 16-bit grey levels, wanted 8 bits": Image.new("I;16", (9, 9)),
        "got float levels, wanted 8 bits": Image.new("F", (9, 9)),
        "got 8193 x 8192 pixels, wanted at most 67108864": Image.new("1", (8193, 8192)),
        "got 0 x 5 pixels, wanted 1 or more": Image.new("RGB", (0, 5)),
    }
    for message, image in bad.items():
        with pytest.raises(InvalidInput, match=f"^image 1: image: {message}"):
            embedder.encode([photos[0], image])
    with pytest.raises(InvalidInput, match="images: got int, wanted a list of images; give one"):
        embedder.encode(5)
    assert len(embedder.encode(image for image in photos)) == len(photos)


def test_a_folder_without_an_image_processor_is_refused(tmp_path):
    saved(tmp_path, *LABELS["vit"])
    with pytest.raises(CheckpointError, match="wanted the model's image processor"):
        fusewire.ImageClassifier(tmp_path, device="cpu")
