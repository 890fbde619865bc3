"""A folder that a class does not open is refused with the name of one that does."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import fusewire
import pytest
import transformers
from fusewire.errors import CheckpointError
from fusewire.models.registry import (
    ARCHITECTURES,
    DECODERS,
    IMAGE_ENCODERS,
    SEQ2SEQ,
    SPEECH,
)

from tests.reference import save_tokenizer, tiny_tokenizer

OF_TEXTS = ("Embedder", "Classifier", "Reranker")
OF_IMAGES = ("ImageEmbedder", "ImageClassifier", "ZeroShotImageClassifier")
CLASSES = (*OF_TEXTS, *OF_IMAGES, "LLM", "Transcriber")
OPENED = {
    **dict.fromkeys(ARCHITECTURES, OF_TEXTS),
    **dict.fromkeys(DECODERS, ("LLM",)),
    **dict.fromkeys(SEQ2SEQ, ("LLM", "Embedder")),
    **dict.fromkeys(IMAGE_ENCODERS, OF_IMAGES),
    **dict.fromkeys(SPEECH, ("Transcriber",)),
}


def refusal(opener: type, folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        opener(folder, device="cpu")
    return str(refused.value)


@pytest.mark.parametrize(("name", "model_type"), [*product(CLASSES, OPENED)])
def test_each_class_opens_its_own_kinds(tmp_path: Path, name: str, model_type: str) -> None:
    """Of a folder that it opens it misses the rest."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    said = refusal(getattr(fusewire, name), tmp_path)
    right = OPENED[model_type]
    if name in right:
        assert "open it with" not in said
    else:
        assert said.startswith(f"config.json: model_type: got {model_type!r}, which ")
        assert said.endswith(f"; open it with {' or '.join(right)}")


def test_a_class_of_ones_own_opens_what_its_base_does(tmp_path: Path) -> None:
    class Own(fusewire.LLM):
        pass

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    assert refusal(Own, tmp_path) == (
        "config.json: model_type: got 'whisper', which transcribes speech, wanted a "
        "model that writes texts; open it with Transcriber"
    )


@pytest.mark.parametrize("model_type", OPENED)
def test_load_opens_what_reads_texts(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(CheckpointError) as refused:
        fusewire.load(tmp_path)
    right = OPENED[model_type]
    if "Embedder" not in right:
        assert str(refused.value).endswith(f"; open it with {' or '.join(right)}")
    else:
        assert "open it with" not in str(refused.value)


def test_a_folder_with_the_head_of_another_task_is_refused_with_what_opens_it(
    tmp_path: Path,
) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes["intermediate_size"] = 32
    bert = transformers.BertConfig(vocab_size=99, max_position_embeddings=32, **sizes)
    vit = transformers.ViTConfig(image_size=32, patch_size=16, **sizes)
    for kind, config, openers, right in (
        ("BertModel", bert, OF_TEXTS[1:], "Embedder"),
        ("BertForQuestionAnswering", bert, OF_TEXTS[1:], "fusewire.load, which does 'answer'"),
        ("ViTModel", vit, ["ImageClassifier"], "ImageEmbedder or ZeroShotImageClassifier"),
    ):
        getattr(transformers, kind)(config).save_pretrained(folder := tmp_path / kind)
        for name in openers:
            said = refusal(getattr(fusewire, name), folder)
            assert said.startswith(f"config.json: architectures: got {kind!r}, wanted a model with")
            assert said.endswith(f"; open it with {right}")
    # The class says nothing about weights that have the head.
    transformers.BertForSequenceClassification(bert).save_pretrained(folder := tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    save_tokenizer(folder, "bert", tiny_tokenizer("wordpiece", 99), 32)
    assert len(fusewire.Classifier(folder, device="cpu").labels) == 2


@pytest.mark.parametrize("model_type", ["mamba", 5, ["bert"], None])
def test_what_no_class_opens_is_refused_by_its_type(tmp_path: Path, model_type: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name in CLASSES:
        assert "open it with" not in refusal(getattr(fusewire, name), tmp_path)
