"""For images and texts, on every device and in every precision, a model is as close to the truth as
transformers itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from fusewire.models import load_image_model, load_text_tower

from tests.models.test_image_models import LABELS, pixels, saved
from tests.models.test_image_text_models import BOTH, TEXT, texts_of
from tests.models.test_image_text_models import LABELS as CLASSIFIERS
from tests.places import EVERYWHERE, TORCH_DTYPES
from tests.tolerance import allowed_error

pytestmark = pytest.mark.parametrize("place", EVERYWHERE, indirect=True)

PATCH = 3 * 14 * 14  # pixels of a patch: the longest sum
# Published head sizes and patches: 72 and 14 are those of SigLIP so400m.
WIDE = {
    "hidden_size": 144,
    "intermediate_size": 304,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SO400M = transformers.SiglipConfig(
    vision_config=WIDE | {"image_size": 42, "patch_size": 14},
    text_config=TEXT | WIDE,
    num_labels=5,
)


def check(model, found: np.ndarray, place, ask) -> None:
    """Checks `found` against the outputs of `ask(model, device, dtype)`."""

    def answers(device: str, dtype: torch.dtype) -> np.ndarray:
        with torch.inference_mode():
            there = copy.deepcopy(model).to(device, dtype)
            return ask(there, device, dtype).double().cpu().numpy()

    truth = answers("cpu", torch.float64)
    theirs = answers(place.device, TORCH_DTYPES[place.dtype])
    assert not allowed_error(truth, theirs, place.dtype, PATCH).excess(found)


@pytest.mark.parametrize("name", [*LABELS, *CLASSIFIERS])
def test_logits_of_labels(name, tmp_path, place):
    kind, config = (LABELS | CLASSIFIERS)[name]
    model = saved(tmp_path, kind, config)
    sizes = getattr(config, "vision_config", config).image_size
    size = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)
    images = pixels(size, size, size)
    ours = load_image_model(tmp_path, "label", place)
    found = ours.results(ours.encode(images))
    batch = torch.from_numpy(np.stack(images))
    check(model, found, place, lambda there, device, dtype: there(batch.to(device, dtype)).logits)


@pytest.mark.parametrize("name", [*BOTH, "siglip so400m"])
def test_embeddings_of_images_and_texts(name, tmp_path, place):
    kind, config = BOTH.get(name, (transformers.SiglipModel, SO400M))
    model = saved(tmp_path, kind, config)
    images, texts = pixels((42, 42), (42, 42), (42, 42)), texts_of(name)
    ours, tower = load_image_model(tmp_path, "embed", place), load_text_tower(tmp_path, place)
    batch, ids = torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(texts))
    check(
        model,
        ours.results(ours.encode(images)),
        place,
        lambda there, device, dtype: (
            there.get_image_features(pixel_values=batch.to(device, dtype)).pooler_output
        ),
    )
    check(
        model,
        tower.embeddings(texts),
        place,
        lambda there, device, _: there.get_text_features(input_ids=ids.to(device)).pooler_output,
    )
