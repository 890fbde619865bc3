"""What the tests of audio share: its features, the engine's settings, and tokens of its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fusewire.engine.generation_settings import GenerationSettings
from numpy.typing import NDArray

from tests.engine.generating import Answer
from tests.models.tiny_whisper import BINS
from tests.reference import edit_config

# Without them a random model says one word again and again.
LIVELY: dict[str, Any] = {"repetition_penalty": 1.6, "no_repeat_ngram_size": 3}
SEED = 2  # of a model that hears several languages, where those of other seeds hear one
WINDOW = 100  # frames of a second, which the model hears


def settings(**more: Any) -> GenerationSettings:
    return GenerationSettings(**{"max_sequences": 8, "kv_cache_mib": 1, **more})


def clips(lengths: list[int], seed: int = 0) -> list[NDArray[np.float32]]:
    """[frames, bins] each."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.6, (frames, BINS)).astype(np.float32) for frames in lengths]


def tokens_of(answer: Answer) -> list[int]:
    return [token for delta in answer.deltas for token in delta.token_ids]


def edit_generation(folder: Path, **changes: Any) -> None:
    """As `edit_config`, of generation_config.json."""
    (folder / "config.json").rename(folder / "kept")
    (folder / "generation_config.json").rename(folder / "config.json")
    edit_config(folder, **changes)
    (folder / "config.json").rename(folder / "generation_config.json")
    (folder / "kept").rename(folder / "config.json")
