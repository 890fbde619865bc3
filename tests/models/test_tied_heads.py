"""Where a head's weight is the embedding's (tied weights), the two are one in memory, as far as
kernels read both in one layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire import kernels
from fusewire.models import load_decoder
from fusewire.models.decoder import DecoderModel
from fusewire.placement import BYTES, Placement

from tests.models.tiny_decoders import VOCABULARY, tiny_decoder
from tests.places import CPU, GPU

HIDDEN = 48


def loaded(folder: Path, place: Placement, tied: bool) -> tuple[DecoderModel, int]:
    """A model and the bytes that its loading takes."""
    folder.mkdir()
    tiny_decoder(folder, "llama", tie_word_embeddings=tied)
    allocator = kernels.default_allocator(place.device)
    before = allocator.stats()["allocated_bytes"]
    model = load_decoder(folder, place)
    return model, allocator.stats()["allocated_bytes"] - before


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_the_head_is_made_of_the_tensor_that_embeds(tmp_path, place: Placement, monkeypatch):
    linear_of, tables = Placement.linear_of, []
    monkeypatch.setattr(
        Placement, "linear_of", lambda *given: tables.append(given[1]) or linear_of(*given)
    )
    model, _ = loaded(tmp_path / "tied", place, tied=True)
    assert tables == [model._word]
    loaded(tmp_path / "untied", place, tied=False)
    assert len(tables) == 1


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_a_gpu_holds_a_tied_weight_once(tmp_path, place: Placement):
    tied, tied_bytes = loaded(tmp_path / "tied", place, tied=True)
    untied, untied_bytes = loaded(tmp_path / "untied", place, tied=False)
    del tied, untied
    once = VOCABULARY * HIDDEN * BYTES[place.dtype] if place.device != "cpu" else 0
    assert untied_bytes - tied_bytes >= once  # on the CPU panels are no rows (cpu/gemm.cc)
