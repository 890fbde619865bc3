"""Values as clients write them: numbers and flags as strings ("true", "5", "0.7"), which is how
config.pbtxt and request parameters may have to send them, and one string for a list of one.

Each function returns the value that is meant, or its argument unchanged where it does not know it.
Numbers and flags of numpy, which callers in Python may have, are Python's.
"""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?([0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32})([eE][-+]?[0-9]{1,3})?")
_FLAGS = {"true": True, "True": True, "false": False, "False": False}


def written_flag(value: object) -> object:
    return _FLAGS.get(value, value) if isinstance(value, str) else _plain(value)


def written_whole(value: object) -> object:
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value) else value
    return _plain(value)


def written_real(value: object) -> object:
    if isinstance(value, str):
        return float(value) if _REAL.fullmatch(value) else value
    return _plain(value)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


_ID = re.compile("0|[1-9][0-9]{0,18}")


def minus_one_as_zero(value: object) -> object:
    whole = written_whole(value)
    return 0 if type(whole) is int and whole == -1 else value


def one_as_list(value: object) -> object:
    """Returns a string as a list of one."""
    return (value,) if isinstance(value, str) else value


def one_id_as_list(value: object) -> object:
    """Returns a token id as a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


def ids_as_keys(value: object) -> object:
    """Converts JSON's keys, which are strings, to token ids. Only one notation per id is accepted,
    so that no id occurs twice."""
    if not isinstance(value, dict):
        return value
    for key in map(_plain, value):
        if type(key) is not int and not (isinstance(key, str) and _ID.fullmatch(key)):
            raise ValueError(f"token ids as keys, not {str(key)[:40]!r}")
    return {int(key): each for key, each in value.items()}


def flag_or(word: str) -> BeforeValidator:
    """Returns a validator for a flag, or this word in its place."""

    def read(value: object) -> object:
        value = written_flag(value)
        if not isinstance(value, bool) and value != word:
            raise ValueError(f'true, false or "{word}"')
        return value

    return BeforeValidator(read)


# Fields of a request: values of their own JSON type, or the same written as a string.
Flag = Annotated[bool, Field(strict=True), BeforeValidator(written_flag)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(written_whole)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False), BeforeValidator(written_real)]
Text = Annotated[str, Field(strict=True, min_length=1)]
