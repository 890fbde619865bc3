"""The messages of errors."""

from __future__ import annotations

import pickle
from copy import copy

import pytest
from fusewire.api.outputs import IncompleteOutputs
from fusewire.errors import (
    FusewireError,
    InvalidInput,
    Overloaded,
    Unavailable,
    Unsupported,
    counted,
    sent,
)

WRONG = InvalidInput("n", 3, "1", "lower it")


def test_a_thing_is_no_things() -> None:
    assert [counted(n, "tokens") for n in range(3)] == ["0 tokens", "1 token", "2 tokens"]


def test_a_list_is_shown_as_one_however_it_is_kept() -> None:
    assert str(InvalidInput("stop", ("a",), "none", "remove it")).startswith("stop: got ['a'], wan")


def test_flags_and_null_of_a_request_are_shown_as_json_has_them() -> None:
    assert [sent(each) for each in (True, False, None, 1, "True")] == [
        "true", "false", "null", "1", "'True'",
    ]  # fmt: skip
    assert str(InvalidInput("n", True, "a number", "correct it")).startswith("n: got true, wanted")


@pytest.mark.parametrize(
    "error",
    [
        WRONG,
        WRONG.at("prompts[2]"),
        Overloaded("queue: full", 2.5),
        Unavailable("it ends"),
        Unsupported("dtype", "int4", "float32", "load it so"),
        IncompleteOutputs([None], {0: WRONG}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: FusewireError) -> None:
    """A process pool (multiprocessing) waits forever for a result that it cannot unpickle."""
    for twin in (pickle.loads(pickle.dumps(error)), copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert {key: str(value) for key, value in vars(twin).items()} == {
            key: str(value) for key, value in vars(error).items()
        }
