"""Before it serves, a model runs once with every number of rows that has its own kernels."""

from __future__ import annotations

import pytest
from fusewire import kernels
from fusewire.models import load_decoder, load_image_model, load_model
from fusewire.placement import Placement

from tests.models.test_image_models import LABELS, saved
from tests.models.tiny_decoders import tiny_decoder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.reference import tiny_checkpoint

ROWS = [40, 16, 3, 1]


class Watched(Placement):
    """A placement that tunes for ROWS, and records the rows of each GEMM outside of the layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("cpu")
        self.asked: list[int] = []
        self.heads: list[int] = []  # rows of GEMMs outside of the layers, while tuning
        linear = kernels.linear

        def noted(out: kernels.Tensor, *arguments: object) -> None:
            assert self.stream.tuning
            self.heads.append(out.shape[0])
            linear(out, *arguments)

        monkeypatch.setattr(kernels, "linear", noted)

    def rows_to_tune(self, max_rows: int) -> list[int]:
        self.asked.append(max_rows)
        return ROWS


def test_an_encoder_runs_its_layers_and_its_head(tmp_path, monkeypatch):
    tiny_checkpoint(tmp_path, "bert", "classify")
    place = Watched(monkeypatch)
    model = load_model(tmp_path, "classify", place)
    model.tune(40)
    assert place.asked == [40]
    assert not place.stream.tuning
    assert model.workspace_stats()["plans"] == len(ROWS)
    assert set(place.heads) == set(ROWS)


@pytest.mark.parametrize("name", ["vit", "deit with a teacher", "dinov2"])
def test_an_encoder_of_images_runs_its_layers_and_its_head(name, tmp_path, monkeypatch):
    saved(tmp_path, *LABELS[name])
    place = Watched(monkeypatch)
    model = load_image_model(tmp_path, "label", place)
    model.tune(40)
    assert place.asked == [40]
    assert not place.stream.tuning
    assert model.workspace_stats()["plans"] == len(ROWS)
    assert set(place.heads) == set(ROWS)


def test_a_decoder_runs_prompts_with_logits_for_every_sequence(tmp_path, monkeypatch):
    tiny_decoder(tmp_path, "gpt2")
    place = Watched(monkeypatch)
    model = load_decoder(tmp_path, place)
    model.tune(model.new_cache(pages=32, page_size=4), max_sequences=12, max_tokens=40)
    assert place.asked == [40]
    assert model.workspace_stats()["plans"] == len(ROWS)
    assert place.heads == [12, 12, 3, 1]


def test_an_encoder_decoder_runs_both(tmp_path, monkeypatch):
    tiny_seq2seq(tmp_path, "bart")
    place = Watched(monkeypatch)
    model = load_decoder(tmp_path, place)
    model.tune(model.new_cache(pages=32, page_size=4), max_sequences=12, max_tokens=40)
    assert place.asked == [40, 40]
    assert model.workspace_stats()["plans"] == 2 * len(ROWS)
    assert place.heads == [12, 12, 3, 1, *ROWS]


def test_where_there_is_no_choice_nothing_runs(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    model = load_model(tmp_path, "hidden")
    model.tune(1 << 24)
    assert model.workspace_stats()["runs"] == 0
