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
    if not isinstance(given, Iterable):
        raise InvalidInput(name, type_name(given), f"a list of {things}", "give one")
    return list(given)


def check_top_k(top_k: object, remedy: str) -> None:
    """Raises InvalidInput unless `top_k` is None or an integer of at least 1."""
    if top_k is None:
        return
    if not isinstance(top_k, Integral) or isinstance(top_k, bool) or top_k < 1:
        raise InvalidInput("top_k", sent(top_k), "a whole number of 1 or more", remedy)
