"""Products of 4-bit weights are timed only where they are right, and the table is made of rows
alone."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import products_4_bits, tables
from benchmarks.products_4_bits import SYSTEMS, Weight, errors_of, installed, made

SHAPES = ((160, 256), (64, 384))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_4_bits, "SHAPES", SHAPES)


def test_every_system_computes_the_product() -> None:
    layer = [Weight(shape, seed) for seed, shape in enumerate(SHAPES)]
    systems = installed(SYSTEMS)
    errors = errors_of(layer, {each: made(each, layer, 1) for each in systems})
    assert list(errors) == systems
    assert errors["fusewire int4"] < 1e-5 < errors["fusewire w4a8"] < errors["fusewire int8"]


def test_what_is_wrong_is_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    layer = [Weight(shape, seed) for seed, shape in enumerate(SHAPES)]

    def wrong(x: products_4_bits.Inputs) -> list[np.ndarray]:
        return [np.zeros((5, shape[0])) for shape in SHAPES]

    assert not errors_of(layer, {"torch int4": wrong})
    assert "torch int4: left out, error 1" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="fusewire int4: got an error of 1"):
        errors_of(layer, {"fusewire int4": wrong})


def test_the_table_has_a_line_for_each_number_of_rows() -> None:
    options = argparse.Namespace(
        layers=1, threads=1, systems=SYSTEMS[:4], rows=[1, 3], rounds=1, seconds=0.001
    )
    facts = {"model": "m", "threads": 1, "cpu": "c", "time": "2026-01-01", "versions": {}}
    rows = [facts | row for row in products_4_bits.measured(options)]
    assert len(rows) == 2 * 4
    table = tables.TABLES["products_4_bits"](rows)
    assert "| m, 1 row |" in table
    assert "| m, 3 rows |" in table
    assert "| error | " in table
