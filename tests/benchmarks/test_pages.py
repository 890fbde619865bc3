"""docs/performance.md and its pictures are what the committed rows say."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import records
from benchmarks.pages import __main__ as pages
from benchmarks.pages import pictures, text
from benchmarks.pages.rows import COMMITTED, committed, take
from benchmarks.pages.speedups import Speedup, groups

DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
WHERE = {"benchmark": "encoder", "model": "MiniLM-L6", "cpu": "a processor", "threads": 2}


def row(system: str, ms: float, **changes: Any) -> dict[str, Any]:
    found = {"case": "1x16", "system": system, "median_ms": ms, "time": "2026-01-02"}
    return WHERE | found | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records.append(tmp_path / "docs/cpu/encoder.jsonl", [row("fusewire", 2.0), row("other", 3.0)])
    return tmp_path / "docs"


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    assert pages.PAGE.read_text(encoding="utf-8") == text.page(COMMITTED), (
        f"{pages.PAGE} is out of date: run python -m benchmarks.pages"
    )


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_committed_pictures_show_the_committed_rows(name: str) -> None:
    root = ElementTree.parse(pages.IMAGES / f"{name}.svg").getroot()
    described = [found.text for found in root.iter(DESCRIPTION)]
    assert described == [pictures.PICTURES[name].describe(COMMITTED)], (
        f"{name}.svg is out of date: run python -m benchmarks.pages"
    )


def test_the_command_for_random_arrivals_repeats_the_committed_rows() -> None:
    options = re.search(r"generation_poisson (--device cuda .*?)`", text.REPEATING)
    assert options is not None
    parser = argparse.ArgumentParser()
    for name in ("--device", "--model"):
        parser.add_argument(name)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--sequences", type=int)
    parser.add_argument("--shares", type=float, nargs="+")
    given = parser.parse_args(options[1].split())
    rows = committed(COMMITTED)["gpu"]["generation_poisson"]
    assert given.shares == sorted({row["share"] for row in rows})
    assert {given.seconds} == {row["seconds"] for row in rows}
    assert {given.sequences} == {row["sequences"] for row in rows}
    assert given.model == "llama-8b"
    assert {row["model"] for row in rows} == {"Llama-3-8B"}


def test_every_table_says_when_and_where_it_was_measured() -> None:
    blocks = text.page(COMMITTED).partition("## Repeating")[0].split("\n\n")
    tables = [index for index, block in enumerate(blocks) if block.startswith("| ")]
    assert len(tables) >= 20
    for index in tables:
        after = " ".join(blocks[index + 1 : index + 3])
        assert re.search(r"\b20\d\d-\d\d-\d\d, (NVIDIA|AMD|Intel)", after), blocks[index][:80]


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_from_rows(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = pictures.PICTURES[name].write(COMMITTED, tmp_path / "images" / f"{name}.svg")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_newer_rows_replace_those_of_their_cases(folder: Path, tmp_path: Path) -> None:
    later = {"time": "2026-01-03T00:00:00Z"}
    new = [row("fusewire", 1.0, **later), row("other", 9.0, case="1x512", **later)]
    records.append(tmp_path / "new.jsonl", [*new, row("x", 1.0, benchmark="on_no_page")])
    assert take(tmp_path / "new.jsonl", folder) == {"cpu/encoder": 2}
    found = committed(folder)["cpu"]["encoder"]
    assert {(each["case"], each["median_ms"]) for each in found} == {("1x16", 1.0), ("1x512", 9.0)}


def test_rows_of_two_machines_never_stand_in_one_table(folder: Path, tmp_path: Path) -> None:
    new = row("fusewire", 1.0, time="2026-01-03", cpu="another", case="1x512")
    records.append(tmp_path / "new.jsonl", [new])
    take(tmp_path / "new.jsonl", folder)
    assert records.read(folder) == [new]


def test_nothing_to_take_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run python -m benchmarks first"):
        take(tmp_path / "none.jsonl", folder)
    assert len(records.read(folder)) == 2


def test_a_speedup_is_over_the_fastest_alternative(folder: Path) -> None:
    more = [row("onnxruntime", 2.5), row("fusewire", 5.0, case="1x128")]
    records.append(folder / "cpu/encoder.jsonl", [*more, row("openvino", 4.0, case="1x128")])
    rows = committed(folder)["cpu"]["encoder"]
    (group,) = groups({"cpu": {"encoder": rows}, "gpu": {}})
    assert group.speedups == [
        Speedup("MiniLM-L6 1x16", "ONNX Runtime", 1.25),
        Speedup("MiniLM-L6 1x128", "OpenVINO", 0.8),
    ]
    assert group.hardware == "a processor, 2 threads, 2026-01-02"
