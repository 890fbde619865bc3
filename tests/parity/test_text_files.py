"""Files that quality is measured on: what is read of them, and which line is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from fusewire.errors import ConfigurationError
from fusewire.parity import text_files
from fusewire.parity.text_files import read_pairs, read_texts


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_text_is_a_line_and_knows_its_number(tmp_path):
    path = written(tmp_path, "a.txt", "\ufeffone\r\n\n  \ntwo words\u2028more \n\tlast")
    lines = read_texts(path)
    assert [line.text for line in lines] == ["one", "two words\u2028more ", "\tlast"]
    assert [line.where for line in lines] == ["a.txt line 1", "a.txt line 4", "a.txt line 5"]


PAIRS = {
    "p.tsv": 'A "cat.\tA dog, too.\t2.5\n\nC\tD\t0\n',
    "headed.tsv": 'sentence1\tsentence2\tscore\nA "cat.\tA dog, too.\t2.5\nC\tD\t0\n',
    "p.csv": '"A ""cat.","A dog, too.",2.5\r\nC,D,0\r\n',
    "headed.csv": 'sentence1,sentence2,score\n"A ""cat.","A dog, too.",2.5\nC,D,0\n',
    "p.jsonl": '{"sentence1": "A \\"cat.", "sentence2": "A dog, too.", "score": 2.5, "x": 1}\n\n'
    '{"sentence1": "C", "sentence2": "D", "score": 0}',
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_have_the_layout_of_sts_b(tmp_path, name):
    pairs = read_pairs(written(tmp_path, name, PAIRS[name]))
    assert [(pair.first.text, pair.second.text, pair.score) for pair in pairs] == [
        ('A "cat.', "A dog, too.", 2.5),
        ("C", "D", 0.0),
    ]
    assert pairs[1].second.where == f"{name} line {2 if name in ('p.csv',) else 3}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "A\tB\t1\nA\tB\n", r"^a\.tsv line 2: got 2 columns, wanted 3: two texts and"),
        ("a.tsv", "A\tB\t1\nA\tB\tC\t2\n", r"^a\.tsv line 2: got 4 columns"),
        ("a.tsv", "A\tB\t1\nA\tB\tgood\n", r"^a\.tsv line 2: score: got 'good', wanted a finite"),
        ("a.tsv", "A\tB\t1\nA\tB\tnan\n", r"^a\.tsv line 2: score: got 'nan'"),
        ("a.tsv", "text\tother\tscore\nA\tB\t1\n", r"^a\.tsv line 1: score: got 'score'"),
        ("a.csv", 'A,B,1\n"A\nB",C,-inf\n', r"^a\.csv line 3: score: got '-inf'"),
        ("a.csv", 'A,B,1\nA,"B" C,2\n', r"^a\.csv line 2: got a line that is no CSV"),
        ("a.csv", 'A,B,1\nA,"B\n', r"^a\.csv line 2: got a line that is no CSV"),
        ("a.csv", f"A,B,1\n{'A' * 200_000},B,2\n", r"^a\.csv line 2: got a line that is no CSV"),
        ("a.jsonl", '{"sentence1": "A"', r"^a\.jsonl line 1: got '\{\"sentence1\": \"A\"', wanted"),
        ("a.jsonl", "[" * 100_000, r"^a\.jsonl line 1: got '\[\["),
        ("a.jsonl", '{"sentence1": "A", "sentence2": 3, "score": 1}', r"^a\.jsonl line 1: got"),
        ("a.jsonl", '\n{"sentence1": "A", "sentence2": "B"}', r"^a\.jsonl line 2: score: got 'Non"),
        ("a.jsonl", '{"sentence1": "", "sentence2": "", "score": true}', r"line 1: score: got 'Tr"),
        ("a.tsv", "A\tB\t1\n", r"^a\.tsv: got 1 pair, wanted at least 2 with different scores"),
        ("a.tsv", "A\tB\t1\nC\tD\t1\n", r"^a\.tsv: got 2 pairs, wanted at least 2 with different"),
        ("a.tsv", b"A\tB\t1\nA\t\xff\t2\n", r"^a\.tsv line 2: got bytes that are not UTF-8"),
        ("a.txt", "A\tB\t1\n", r"^a\.txt: got \.txt, wanted \.tsv, \.csv or \.jsonl; rename"),
    ],
)
def test_the_line_at_fault_is_named(tmp_path, name, text, message):
    with pytest.raises(ConfigurationError, match=message):
        read_pairs(written(tmp_path, name, text))


def test_texts_at_fault(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"^a\.txt: got no text, wanted one a line"):
        read_texts(written(tmp_path, "a.txt", "\n \n"))
    with pytest.raises(ConfigurationError, match=r"^a\.txt line 3: got bytes that are not UTF-8"):
        read_texts(written(tmp_path, "a.txt", b"a\nb\nc\xc3\nd"))
    monkeypatch.setattr(text_files, "_MOST_BYTES", 1 << 20)
    read_texts(written(tmp_path, "a.txt", b"a" * (1 << 20)))
    with pytest.raises(ConfigurationError, match=r"^a\.txt: got more than 1 MiB, wanted at most"):
        read_texts(written(tmp_path, "a.txt", b"a" * ((1 << 20) + 1)))
