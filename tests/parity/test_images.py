"""What `fusewire check` measures of a model of images."""

from __future__ import annotations

import pytest
import torch
import transformers
from fusewire.parity import parity

from tests.models.test_image_models import CLIP, LABELS, SMALL, saved
from tests.models.test_image_text_models import BOTH
from tests.tolerance import MODEL_FP32

SIGLIP_TOWER = (
    transformers.SiglipVisionModel,
    transformers.SiglipVisionConfig(**SMALL | {"intermediate_size": 80}),
)
FOLDERS = {
    **{(name, "label"): LABELS[name] for name in ("vit", "deit with a teacher", "dinov2")},
    **{(name, "embed"): LABELS[name] for name in ("vit", "deit", "dinov2")},
    **{(name, task): BOTH[name] for name in BOTH for task in ("embed", "label")},
    ("clip_vision_model", "embed"): CLIP["the tower of images"],
    ("siglip_vision_model", "embed"): SIGLIP_TOWER,
}
"""(name, task) -> class and configuration."""


@pytest.mark.parametrize(("name", "task"), FOLDERS)
def test_a_model_of_images_agrees_with_transformers(tmp_path, name, task):
    saved(tmp_path, *FOLDERS[name, task])
    if name in BOTH:  # texts are compared where the folder has a tokenizer
        (tmp_path / "tokenizer.json").write_text("{}")
    measured = parity(tmp_path, task, sequences=3)
    names = {"image_embeds"} if task == "embed" or name in BOTH else {"logits"}
    assert measured.differences.keys() == names | ({"text_embeds"} if name in BOTH else set())
    assert 0 < measured.largest <= MODEL_FP32
    assert measured.passed


def test_another_weight_is_seen(tmp_path, monkeypatch):
    model = saved(tmp_path / "theirs", *LABELS["vit"])
    with torch.no_grad():
        model.vit.layernorm.bias[3] += 1
    model.save_pretrained(tmp_path / "ours")
    monkeypatch.setattr(
        "fusewire.parity.images.load_image_text_model",
        lambda folder, *how: _load(tmp_path / "ours", *how),
    )
    assert not parity(tmp_path / "theirs", "label").passed


def _load(folder, task, place):
    from fusewire.models import load_image_text_model

    return load_image_text_model(folder, task, place)
