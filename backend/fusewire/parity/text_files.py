"""Reads files of texts, and of pairs of texts with a score, to measure quality on."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusewire.errors import ConfigurationError, counted

_MOST_BYTES = 16 << 20
_COLUMNS = ("sentence1", "sentence2", "score")
_LAYOUT = "two texts and a score"
_FEWEST_PAIRS = 2  # minimum to have a ranking


@dataclass(frozen=True)
class Line:
    """A text and its position in a file."""

    text: str
    where: str  # file and line, for error messages


@dataclass(frozen=True)
class Pair:
    first: Line
    second: Line
    score: float  # larger is more similar


def read_texts(path: Path) -> list[Line]:
    """Reads one text per line, in UTF-8; empty lines are skipped. Raises ConfigurationError with
    the number of the line."""
    lines = enumerate(_read(path).split("\n"), 1)
    found = [Line(text.rstrip("\r"), _at(path, number)) for number, text in lines if text.strip()]
    if not found:
        raise ConfigurationError(
            f"{path.name}: got no text, wanted one a line; write some into the file"
        )
    return found


def read_pairs(path: Path) -> list[Pair]:
    """Reads pairs in the layout of STS-B, in UTF-8: the columns sentence1, sentence2 and score of a
    .tsv or .csv file, with or without a header line; or objects with these keys from a .jsonl file.
    Raises ConfigurationError with the number of the line."""
    if path.suffix == ".jsonl":
        rows = _objects(path)
    elif path.suffix in (".csv", ".tsv"):
        rows = _columns(path)
    else:
        raise ConfigurationError(
            f"{path.name}: got {path.suffix or 'no suffix'}, wanted .tsv, .csv or .jsonl; rename "
            "the file, or convert it"
        )
    pairs = []
    for where, (first, second, score) in rows:
        pairs.append(Pair(Line(first, where), Line(second, where), _number(where, score)))
    if len(pairs) < _FEWEST_PAIRS or len({pair.score for pair in pairs}) == 1:
        raise ConfigurationError(
            f"{path.name}: got {counted(len(pairs), 'pairs')}, wanted at least {_FEWEST_PAIRS} "
            "with different scores, whose order is compared; add some"
        )
    return pairs


def _columns(path: Path) -> Iterator[tuple[str, tuple[str, str, object]]]:
    text = io.StringIO(_read(path), newline="")
    quoted = path.suffix == ".csv"
    reader = csv.reader(
        text,
        delimiter="," if quoted else "\t",
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    try:
        for index, row in enumerate(reader):
            if not row or (index == 0 and tuple(row) == _COLUMNS):
                continue
            where = _at(path, reader.line_num)
            if len(row) != len(_COLUMNS):
                raise ConfigurationError(
                    f"{where}: got {len(row)} columns, wanted 3: {_LAYOUT}; correct the line"
                )
            yield where, (row[0], row[1], row[2])
    except csv.Error as error:
        raise ConfigurationError(
            f"{_at(path, reader.line_num)}: got a line that is no CSV ({error}), wanted {_LAYOUT}; "
            "correct the line"
        ) from None


def _objects(path: Path) -> Iterator[tuple[str, tuple[str, str, object]]]:
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        where = _at(path, number)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        values: list[Any] = [row.get(key) for key in _COLUMNS] if isinstance(row, dict) else []
        if [type(text) for text in values[:2]] != [str, str]:
            raise ConfigurationError(
                f"{where}: got {line[:80]!r}, wanted a JSON object with the texts sentence1 and "
                "sentence2, and a score; correct the line"
            )
        yield where, (values[0], values[1], values[2])


def _number(where: str, score: object) -> float:
    try:
        value = float(score) if isinstance(score, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if isinstance(score, bool) or not math.isfinite(value):
        raise ConfigurationError(
            f"{where}: score: got {str(score)[:80]!r}, wanted a finite number; correct the line"
        )
    return value


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(
            f"{path.name}: got more than {_MOST_BYTES >> 20} MiB, wanted at most that; take a part "
            "of the file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"{_at(path, line)}: got bytes that are not UTF-8, wanted UTF-8; convert the file"
        ) from None


def _at(path: Path, line: int) -> str:
    return f"{path.name} line {line}"
