"""How many sequences run at once where no setting says so, for how many there is memory, and how
many tokens a step computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_memory import (
    PAGE_SIZE,
    pages_for,
    sequences_of,
    with_large_steps,
)
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.models.seq2seq_model import Seq2SeqModel

from tests.engine.generating import tiny_folder


def model_on(device: str, *, encoder: bool = False) -> Any:
    model = Seq2SeqModel.__new__(Seq2SeqModel) if encoder else SimpleNamespace()
    model.place = SimpleNamespace(device=device)  # type: ignore[assignment]
    return model


def test_a_decoder_on_a_gpu_runs_more_at_once() -> None:
    settings = GenerationSettings()
    assert sequences_of(model_on("cuda:1"), settings) == 256
    assert sequences_of(model_on("cpu"), settings) == 64
    assert sequences_of(model_on("cuda:0", encoder=True), settings) == 64


def test_a_step_has_a_token_of_each() -> None:
    few = GenerationSettings(max_batch_tokens=48)
    assert sequences_of(model_on("cuda:0"), few) == sequences_of(model_on("cpu"), few) == 48


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_setting_decides(device: str) -> None:
    assert sequences_of(model_on(device), GenerationSettings(max_sequences=7)) == 7


def test_there_are_pages_for_64_of_full_length_or_for_as_many_as_are_asked_for(
    tmp_path: Path,
) -> None:
    with GenerationEngine(tiny_folder(tmp_path / "model")) as engine:
        of_one = -(-engine.limits.max_length // PAGE_SIZE)
        assert engine.cache.pages == 64 * of_one
        asked = GenerationSettings(max_sequences=100)
        assert pages_for(engine.model, asked, engine.limits) == 100 * of_one


@pytest.mark.parametrize(
    ("device", "free_gib", "tokens"),
    [("cuda:0", 33, 8192), ("cuda:0", 31, 2048), ("cpu", 33, 2048)],
)
def test_steps_that_may_take_long_are_large_on_a_gpu_with_memory_for_them(
    monkeypatch: pytest.MonkeyPatch, device: str, free_gib: int, tokens: int
) -> None:
    allocator = SimpleNamespace(free_bytes=lambda: free_gib << 30)
    monkeypatch.setattr("fusewire.kernels.default_allocator", lambda _: allocator)
    found = with_large_steps(model_on(device), GenerationSettings())
    assert found.max_batch_tokens == tokens
    asked = GenerationSettings(max_batch_tokens=2048)
    assert with_large_steps(model_on(device), asked).max_batch_tokens == 2048


@pytest.mark.gpu
def test_a_gpu_engine_admits_256_with_pages_for_64_of_full_length(tmp_path: Path) -> None:
    with GenerationEngine(tiny_folder(tmp_path / "model"), device="cuda") as engine:
        assert engine.limits.max_sequences == 256
        assert engine.cache.pages == 64 * -(-engine.limits.max_length // PAGE_SIZE)
