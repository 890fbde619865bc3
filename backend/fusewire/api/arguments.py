"""Arguments that several classes check in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from fusewire.errors import InvalidInput, sent, type_name


def listed(name: str, given: Any, things: str) -> list[Any]:
    """An argument that is a list of `things`; InvalidInput for one of them, and for what is no
    list."""
    if isinstance(given, (str, bytes, Mapping)):
        raise InvalidInput(name, f"one {type_name(given)}", f"a list of {things}", "write […]")
    if not isinstance(given, Iterable):
        raise InvalidInput(name, type_name(given), f"a list of {things}", "give one")
    return list(given)


def check_top_k(top_k: object, remedy: str) -> None:
    """InvalidInput unless it is None or a whole number of at least 1."""
    if top_k is None:
        return
    if not isinstance(top_k, Integral) or isinstance(top_k, bool) or top_k < 1:
        raise InvalidInput("top_k", sent(top_k), "a whole number of 1 or more", remedy)
