"""Checks of arguments that several classes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from fusewire.errors import InvalidInput, sent, type_name


def listed(name: str, given: Any, things: str) -> list[Any]:
    """Returns an argument as a list of `things`. Raises InvalidInput for a single one of them, and
    for other values that are not iterable."""
    if isinstance(given, (str, bytes, Mapping)):
        raise InvalidInput(name, f"one {type_name(given)}", f"a list of {things}", "write […]")
    # NumPy's and torch's arrays without dimensions are Iterable by their class alone.
    if not isinstance(given, Iterable) or getattr(given, "ndim", None) == 0:
        raise InvalidInput(name, type_name(given), f"a list of {things}", "give one")
    return list(given)


def check_top_k(top_k: object, remedy: str) -> None:
    """Raises InvalidInput unless `top_k` is None or an integer of at least 1."""
    _check_count("top_k", top_k, remedy)


def check_batch_size(batch_size: object) -> None:
    """Raises InvalidInput unless `batch_size` is None or an integer of at least 1."""
    _check_count("batch_size", batch_size, "raise it or leave it out")


def _check_count(name: str, given: object, remedy: str) -> None:
    if given is None:
        return
    if not isinstance(given, Integral) or isinstance(given, bool) or given < 1:
        raise InvalidInput(name, sent(given), "a whole number of 1 or more", remedy)
