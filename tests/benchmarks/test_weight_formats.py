"""Formats of weights are measured on the same input, and the table is made of rows alone."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from fusewire.models import load_model
from fusewire.placement import Placement

from benchmarks import tables, weight_formats
from tests.reference import tiny_checkpoint


def test_a_row_has_times_and_cosines_of_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_checkpoint(tmp_path, "bert", "hidden")
    models = {
        name: load_model(tmp_path, "hidden", Placement("cpu", *precision))
        for name, precision in weight_formats.FORMATS.items()
    }
    vocab_size = models["float32"].vocab_size
    monkeypatch.setattr(weight_formats.random_bert, "VOCABULARY", vocab_size)
    rows = weight_formats.measured(models, "1x16", Namespace(rounds=1, seconds=0.0))
    exact, *fewer = rows
    assert exact["times_float32"] == exact["times_float32_least"] == 1
    assert exact["mean_cosine"] == pytest.approx(1)
    assert [row["system"] for row in fewer] == ["bfloat16", "int8"]
    assert all(0.95 < row["least_cosine"] < row["mean_cosine"] < 1 for row in fewer)


def test_the_table_is_read_from_rows() -> None:
    facts = {"benchmark": "weight_formats", "model": "MiniLM-L6", "input": "1x16", "threads": 1}
    facts |= {"versions": {"numpy": "2"}, "cpu": "a CPU", "time": "2026-11-24T00:00:00Z"}
    rows = [
        {**facts, "system": name, "ms": ms, "times_float32": 4 / ms, "mean_cosine": cosine}
        for name, ms, cosine in (
            ("float32", 4.0, 1.0),
            ("bfloat16", 2.0, 0.9999),
            ("int8", 1, 0.99),
        )
    ]
    table = tables.TABLES["weight_formats"](rows)
    assert "| MiniLM-L6, 1x16 | 4.0 | 2.0 | 1.0 | 2.00 | 4.00 | 0.9999 | 0.9900 |" in table
