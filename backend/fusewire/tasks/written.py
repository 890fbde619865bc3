"""Values that a client, or config.pbtxt, can only send as strings: "true", "5", "0.7".

Each function returns the value that such a string spells, and anything else as it is.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?([0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32})([eE][-+]?[0-9]{1,3})?")
_FLAGS = {"true": True, "True": True, "false": False, "False": False}


def written_flag(value: object) -> object:
    return _FLAGS.get(value, value) if isinstance(value, str) else value


def written_whole(value: object) -> object:
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


def written_real(value: object) -> object:
    return float(value) if isinstance(value, str) and _REAL.fullmatch(value) else value


# Fields of a request: of their own JSON type, or written as a string.
Flag = Annotated[bool, Field(strict=True), BeforeValidator(written_flag)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(written_whole)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False), BeforeValidator(written_real)]
