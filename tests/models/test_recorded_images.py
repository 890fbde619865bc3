"""Captured forwards of images answer as eager ones: on a GPU, and on the CPU with a stand-in that
repeats the work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fusewire import kernels
from fusewire.errors import InvalidInput
from fusewire.models import ImageModel, load_image_model
from fusewire.models.image_replay import ImageReplays
from fusewire.placement import Placement

from tests.models.test_image_models import LABELS, saved
from tests.places import GPU_FP32
from tests.tolerance import BATCHED_VERSUS_ALONE, GPU_BATCHED_VERSUS_ALONE

BATCHES = [[(42, 42)], [(42, 42)] * 3, [(28, 56), (42, 42), (14, 14)], [(42, 42), (28, 56)]]
ROUNDS = 3  # grids are first only counted, then captured, then replayed
LARGE = [(560, 560)] * 3  # too large for capture


class Again:
    """A graph whose replay runs the captured function."""

    def __init__(self, stream: kernels.Stream, work: Callable[[], None]) -> None:
        self.replay = lambda _: work()


def check(model: ImageModel, allowed: float) -> None:
    rng = np.random.default_rng(0)

    def pixels(sizes: list[tuple[int, int]]) -> list[np.ndarray]:
        return [rng.standard_normal((3, *size), np.float32) for size in sizes]

    work = [pixels(sizes) for sizes in [*BATCHES, LARGE] for _ in range(ROUNDS)]
    replays, model._replays = model._replays, None
    eager = [model.results(model.encode(images)) for images in work]
    model._replays = replays
    for images, wanted in zip(work, eager, strict=True):
        found = model.results(model.encode(images))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=allowed)
    assert replays is not None
    assert replays.hits >= len(BATCHES) * (ROUNDS - 2)
    keys = [tuple(map(model._patches.grid, pixels(sizes))) for sizes in [*BATCHES, LARGE]]
    assert [key in replays.recorded for key in keys] == [True] * len(BATCHES) + [False]


@pytest.mark.parametrize("name", LABELS)
def test_replays_answer_as_eager_forwards(name, tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "capture", Again)
    saved(tmp_path, *LABELS[name])
    model = load_image_model(tmp_path, "label")
    model._replays = ImageReplays(
        model._patches, model._head.reads, model._forward, model._workspace, model.hidden_size
    )
    check(model, BATCHED_VERSUS_ALONE)


def test_a_recording_answers_after_pixels_that_were_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "capture", Again)
    saved(tmp_path, *LABELS["vit"])
    model = load_image_model(tmp_path, "label")
    image = np.random.default_rng(0).standard_normal((3, 42, 42), np.float32)
    wanted = model.results(model.encode([image]))
    model._replays = ImageReplays(
        model._patches, model._head.reads, model._forward, model._workspace, model.hidden_size
    )
    for _ in range(ROUNDS):
        with pytest.raises(InvalidInput, match="not finite"):
            model.encode([image * np.float32(np.nan)])
        np.testing.assert_array_equal(model.results(model.encode([image])), wanted)
    assert model._replays.hits


@pytest.mark.parametrize("place", [GPU_FP32], indirect=True)
@pytest.mark.parametrize("name", LABELS)
def test_recorded_answers_are_the_eager_ones(name, tmp_path, place):
    saved(tmp_path, *LABELS[name])
    model = load_image_model(tmp_path, "label", place)
    model.record_forwards()
    check(model, GPU_BATCHED_VERSUS_ALONE)


def test_where_nothing_is_recorded_forwards_stay_eager(tmp_path):
    saved(tmp_path, *LABELS["vit"])
    model = load_image_model(tmp_path, "label", Placement("cpu"))
    model.record_forwards()
    assert model._replays is None
