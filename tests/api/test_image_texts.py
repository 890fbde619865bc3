"""Texts beside images give what transformers' models and its zero-shot pipeline give."""

from __future__ import annotations

import json

import fusewire
import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.tower_tokenizer import TowerTokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.api.test_images import expect_same_labels
from tests.images import files
from tests.models.test_image_models import LABELS, saved
from tests.models.test_image_text_models import BOTH
from tests.tolerance import MODEL_FP32

CANDIDATES = ["cat", "two dogs", "Bird", "fish in a sea", "cat"]
NAMES = {
    "clip": "CLIPImageProcessorPil",
    "clip with the old end token": "CLIPImageProcessorPil",
    "siglip": "SiglipImageProcessorPil",
}
CHARACTERS = "abcdefghijklmnoprstuvw.,!?"
# The ids that the tiny models of `BOTH` have for the ends of a text.
START, END, HIGHEST = 47, 48, 49


def clip_tokenizer(end: int):
    vocabulary = {f"{each}</w>": index for index, each in enumerate(CHARACTERS)}
    vocabulary |= {each: 26 + index for index, each in enumerate(CHARACTERS[:20])}
    vocabulary |= {"<|startoftext|>": START, "<|endoftext|>": end}
    vocabulary["unused"] = END + HIGHEST - end
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[])


def siglip_tokenizer(side: str):
    """As SigLIP 2's: the processors' own mask is not asked for."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *CHARACTERS]
    return transformers.Siglip2Tokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=[],
        padding_side=side,
        model_input_names=["input_ids"],
    )


def folder_of(path, name, side="right"):
    model = saved(path, *BOTH[name])
    processor = getattr(transformers, NAMES[name])()
    processor.size = {"height": 42, "width": 42}
    processor.crop_size = {"height": 42, "width": 42}
    processor.save_pretrained(path)
    end = HIGHEST if "old" in name else END
    tokenizer = siglip_tokenizer(side) if name == "siglip" else clip_tokenizer(end)
    tokenizer.save_pretrained(path)
    return model


@pytest.fixture
def photos(tmp_path):
    paths = []
    for seed, name in enumerate(("a.png", "b.png", "c.png")):
        (tmp_path / name).write_bytes(files.photo(60 + 9 * seed, 45, seed=seed))
        paths.append(str(tmp_path / name))
    return paths


@pytest.mark.parametrize(
    ("name", "side", "template"),
    [
        ("clip", "right", "{}."),
        ("clip with the old end token", "right", "a {}!"),
        ("siglip", "right", None),
        ("siglip", "left", None),
        ("siglip", "right", "{}!"),
    ],
)
def test_labels_and_scores_are_those_of_the_pipeline(name, side, template, tmp_path, photos):
    folder_of(tmp_path, name, side)
    classifier = fusewire.ZeroShotImageClassifier(tmp_path, device="cpu")
    template = {} if template is None else {"hypothesis_template": template}
    ours = classifier(photos, CANDIDATES, batch_size=2, **template)
    pipeline = transformers.pipeline("zero-shot-image-classification", str(tmp_path))
    theirs = pipeline(photos, CANDIDATES, **template)
    expect_same_labels(ours, theirs)
    assert classifier(photos[1], CANDIDATES, top_k=2, **template) == ours[1][:2]
    (alone,) = classifier(photos[0], ["cat"], **template)
    assert alone["label"] == "cat"
    assert (alone["score"] == 1) == (name != "siglip")


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_of_texts_are_those_of_transformers(name, tmp_path):
    model = folder_of(tmp_path, name)
    embedder = fusewire.ImageEmbedder(tmp_path, device="cpu")
    texts = ["a cat", "dogs", "", "Bird, in the sea!"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    length = {"padding": "max_length", "max_length": 64} if name == "siglip" else {"padding": True}
    with torch.inference_mode():
        given = model.get_text_features(**tokenizer(texts, return_tensors="pt", **length))
    wanted = given.pooler_output.numpy()
    found = embedder.encode_text(texts)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=MODEL_FP32)
    unit = embedder.encode_text(texts[0], normalize_embeddings=True)
    np.testing.assert_allclose(unit, found[0] / np.linalg.norm(found[0]), rtol=0, atol=1e-6)
    assert found.shape[1] == embedder.encode(files.photo(50, 50)).shape[0]


def test_a_thousand_labels_are_labels(tmp_path, photos):
    folder_of(tmp_path, "clip")
    classifier = fusewire.ZeroShotImageClassifier(tmp_path, device="cpu")
    letters = CHARACTERS[:10]
    labels = [a + b + c for a in letters for b in letters for c in letters]
    found = classifier(photos[0], labels, hypothesis_template="{}")
    assert sorted(each["label"] for each in found) == sorted(labels)
    assert sum(each["score"] for each in found) == pytest.approx(1)


def test_labels_that_cannot_be_compared_are_refused(tmp_path, photos):
    folder_of(tmp_path, "clip")
    classifier = fusewire.ZeroShotImageClassifier(tmp_path, device="cpu")
    bad = {
        "candidate_labels: got none, wanted 1 or more": [],
        "candidate_labels: got one str, wanted a list of labels": "cat",
        "candidate_labels: got an empty label at 1": ["cat", " "],
        "candidate_labels: got int at 0, wanted str": [3],
        "texts: got 103 tokens at 1, wanted at most 20": ["cat", "c" * 100],
    }
    for message, labels in bad.items():
        with pytest.raises(InvalidInput, match=f"^{message}"):
            classifier(photos[0], labels, hypothesis_template="{}.")
    with pytest.raises(InvalidInput, match="hypothesis_template: got 'a photo', wanted a sentence"):
        classifier(photos[0], ["cat"], hypothesis_template="a photo")
    with pytest.raises(InvalidInput, match="top_k: got 0"):
        classifier(photos[0], ["cat"], top_k=0)
    with pytest.raises(InvalidInput, match="images: got none"):
        classifier([], ["cat"], hypothesis_template="{}")
    assert classifier(photos[0], ["cat"], hypothesis_template="{}")[0]["score"] == 1


def test_texts_that_cannot_be_embedded_are_refused(tmp_path):
    folder_of(tmp_path, "siglip")
    embedder = fusewire.ImageEmbedder(tmp_path, device="cpu")
    with pytest.raises(InvalidInput, match="texts: got 65 tokens at 1, wanted at most 64"):
        embedder.encode_text(["a", "b" * 65])
    with pytest.raises(
        InvalidInput, match="texts: got 65537 characters at 0, wanted at most 65536"
    ):
        embedder.encode_text(" " * 65537)
    with pytest.raises(InvalidInput, match="texts: got none"):
        embedder.encode_text([])
    with pytest.raises(InvalidInput, match="texts: got int at 0, wanted str"):
        embedder.encode_text([3])


def test_a_model_without_texts_or_tokenizer_embeds_images_alone(tmp_path):
    saved(tmp_path / "vit", *LABELS["vit"])
    transformers.ViTImageProcessorPil().save_pretrained(tmp_path / "vit")
    embedder = fusewire.ImageEmbedder(tmp_path / "vit", device="cpu")
    with pytest.raises(CheckpointError, match="got 'vit', wanted one of clip, siglip"):
        embedder.encode_text("a cat")
    folder_of(tmp_path / "clip", "clip")
    (tmp_path / "clip" / "tokenizer.json").unlink()
    embedder = fusewire.ImageEmbedder(tmp_path / "clip", device="cpu")
    embedder.encode(files.photo(42, 42))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: got no such file"):
        embedder.encode_text("a cat")


def test_siglips_texts_lose_their_punctuation_and_case(tmp_path):
    """transformers' SiglipTokenizer does so, and its tokenizer.json need not."""
    words = Tokenizer(
        models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "cats": 3, "Cats": 4}, "<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    words.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "SiglipTokenizer", "pad_token": "</s>"}
    texts = ["a  Cats!", " a\tcat's.\n", "{a} (Cats)", "!"]
    for lower, cats in ((True, 3), (False, 4)):
        file = tmp_path / "tokenizer_config.json"
        file.write_text(json.dumps(config | {"do_lower_case": lower}))
        found = TowerTokenizer(tmp_path, max_length=3, padded=True).ids(texts)
        wanted = [[2, cats, 1], [2, 3, 1], [2, cats, 1], [1, 1, 1]]
        assert [ids.tolist() for ids in found] == wanted
