"""JSON of requests that is rejected before it is parsed."""

from __future__ import annotations

import json

import pytest
from fusewire.errors import InvalidInput
from fusewire.text import bounded_json
from fusewire.text.bounded_json import MOST_MEMBERS, MOST_VALUES, read_object
from hypothesis import given
from hypothesis import strategies as st

MOST_BYTES = 1 << 24
TEXTS = st.text() | st.text(alphabet='\\"[]{},:a')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


def structure_of(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(":" + structure_of(each) for each in value.values()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(structure_of, value)) + "]"
    return ""


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, 1 << 14])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_strings_hold_is_no_structure(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int, ascii_only: bool
) -> None:
    monkeypatch.setattr(bounded_json, "_SLICE_BYTES", slice_bytes)

    @given(value=VALUES)
    def check(value: object) -> None:
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
        found = b"".join(structure for structure, _ in bounded_json._structure(text))
        assert found.decode() == structure_of(value)

    check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": [%s 1]}' % (b"1," * MOST_VALUES), f"over {MOST_VALUES} values"),
        (b'{"a": [%s 1]}' % (b"[]," * MOST_MEMBERS), f"over {MOST_MEMBERS} lists, objects"),
        (b'{%s "a": 1}' % (b'"a":1,' * MOST_MEMBERS), f"over {MOST_MEMBERS} lists, objects"),
        (b'{"a": %s}' % (b'""' * (MOST_VALUES + MOST_MEMBERS)), "strings"),
        (b'{"a": %s' % (b"[" * 1000), "deeper nesting"),
        (b"]" * 1000, "ill-formed JSON"),
    ],
)
def test_more_than_the_limits_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_object("body", text, MOST_BYTES)


def test_as_many_values_as_allowed_are_read() -> None:
    ids = [50_256] * (MOST_VALUES - 2)
    assert read_object("body", json.dumps({"a": ids}).encode(), MOST_BYTES) == {"a": ids}
    text = ",[{" * 100_000
    assert read_object("body", json.dumps({"a": text}).encode(), MOST_BYTES) == {"a": text}
