"""What several classes say of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fusewire.api.arguments import check_batch_size, check_top_k, listed
from fusewire.errors import ConfigurationError, InvalidInput
from fusewire.precision import skipped
from fusewire.settings import EngineSettings


@pytest.mark.parametrize("given", [["a"], ("a",), iter("a"), np.array(["a"])])
def test_what_can_be_gone_through_is_a_list(given: Any) -> None:
    assert listed("texts", given, "texts") == ["a"]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("a", "one str"),
        (b"a", "one bytes"),
        ({"a": 1}, "one dict"),
        (None, "None"),
        (5, "int"),
        (np.array("a"), "ndarray"),
    ],
)
def test_one_thing_and_none_are_no_list(given: Any, got: str) -> None:
    with pytest.raises(InvalidInput, match=f"texts: got {got}, wanted a list of texts; "):
        listed("texts", given, "texts")


def test_top_k_is_a_whole_number() -> None:
    for right in (None, 1, np.int64(3)):
        check_top_k(right, "")
    for wrong in (0, -1, True, "1", 1.0):
        with pytest.raises(InvalidInput, match=r"top_k: got .*, wanted a whole number of"):
            check_top_k(wrong, "")


def test_batch_size_is_a_whole_number() -> None:
    for right in (None, 1, np.int64(3)):
        check_batch_size(right)
    for wrong in (0, -1, True, "1", 1.0):
        with pytest.raises(InvalidInput, match=r"batch_size: got .*, wanted a whole number of"):
            check_batch_size(wrong)


def test_matrices_that_are_not_quantised_are_named_in_a_list_or_as_settings_are() -> None:
    for right in (["a", "b"], iter("ab"), "a, b"):
        assert skipped(right) == {"a", "b"}
    for wrong, got in ((None, "None"), (["a", 3], "3"), (b"a", "97")):
        with pytest.raises(ConfigurationError, match=f"quantize_skip: got {got}, wanted a list"):
            skipped(wrong)


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), "a,b"])
def test_settings_take_both(given: Any) -> None:
    assert EngineSettings(quantize_skip=given).quantize_skipped == {"a", "b"}
    with pytest.raises(ConfigurationError, match=r"quantize_skip: got .*, wanted"):
        EngineSettings(quantize_skip=[*given, 3])
