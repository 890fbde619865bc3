"""Systems that the encoder is compared with give transformers' hidden states."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import transformers

from benchmarks import arena
from tests.tolerance import MODEL_FP32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.BertModel(config).save_pretrained(path)
    return path


def test_openvino_computes_in_fp32_alone_and_unpadded(folder: Path) -> None:
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("openvino is not installed")
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 300, length) for length in (5, 30, 1, 17, 30)]
    with (
        arena.System("openvino", folder, 1) as theirs,
        arena.System("transformers", folder, 1) as it,
    ):
        for asked in (sequences[:1], sequences):
            assert np.abs(theirs.run(asked) - it.run(asked)).max() < MODEL_FP32
