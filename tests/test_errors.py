"""The words of errors."""

from __future__ import annotations

from fusewire.errors import InvalidInput, counted, sent


def test_a_thing_is_no_things() -> None:
    assert [counted(n, "tokens") for n in range(3)] == ["0 tokens", "1 token", "2 tokens"]


def test_a_list_is_shown_as_one_however_it_is_kept() -> None:
    assert str(InvalidInput("stop", ("a",), "none", "remove it")).startswith("stop: got ['a'], wan")


def test_flags_and_null_of_a_request_are_shown_as_json_has_them() -> None:
    assert [sent(each) for each in (True, False, None, 1, "True")] == [
        "true", "false", "null", "1", "'True'",
    ]  # fmt: skip
    assert str(InvalidInput("n", True, "a number", "correct it")).startswith("n: got true, wanted")
