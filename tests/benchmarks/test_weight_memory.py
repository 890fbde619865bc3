"""The benchmark of memory by the format of weights counts what a process takes for a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.memory import alone
from benchmarks.weight_memory import FORMATS, MODELS, encode, taken_mib

WEIGHTS = 4 * 12 * 512**2  # of the layers of a BERT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import transformers

    config = transformers.BertConfig(
        vocab_size=1024, hidden_size=512, num_hidden_layers=4, intermediate_size=2048
    )
    config.num_attention_heads = 8
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_process_takes_fewer_bytes_for_weights_of_fewer_bits(folder: Path) -> None:
    taken = {
        system: alone(taken_mib, folder, encode, "cpu", precision)
        for system, precision in FORMATS["cpu"].items()
    }
    for system, bytes_each in (("bfloat16", 2), ("int8", 1)):
        saved_mib = (4 - bytes_each) * WEIGHTS / (1 << 20)
        # The rest of the process differs too, by what the products of a format need.
        assert saved_mib / 2 < taken["float32"] - taken[system] < 2 * saved_mib


def test_the_table_has_a_line_per_model() -> None:
    facts = {"benchmark": "weight_memory", "threads": 1, "file_mib": 400.0, "load_average": 0.0}
    facts |= {"versions": {"numpy": "2"}, "cpu": "a CPU", "time": "2026-11-24T00:00:00Z"}
    rows = [
        facts | {"model": model, "system": system, "taken_mib": mib}
        for model in MODELS
        for system, mib in (("float32", 390.6), ("int8", 150.2))
    ]
    lines = tables.TABLES["weight_memory"](rows).splitlines()
    assert lines[2] == "| | file in float32 | float32 | int8 |"
    assert lines[4:6] == [f"| {model} | 400 | 391 | 150 |" for model in MODELS]
