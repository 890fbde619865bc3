"""JSON of a request: bounded in size and nesting, strict in what JSON allows."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from fusewire.errors import InvalidInput

# Over ten times what the longest sensible parameters take: every list at its limit.
MOST_BYTES = 1 << 18
# The object, and lists or objects in it; one more than any field has, so that the field is named.
MOST_NESTING = 3

# Its end may be missing: a search for it from every quote would take quadratic time.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_BRACKET = re.compile(rb"[\[\]{}]")


def read_object(
    field: str, text: bytes, most_bytes: int = MOST_BYTES, most_nesting: int = MOST_NESTING
) -> dict[str, Any]:
    """The object in `text`. InvalidInput names `field`: too long, not UTF-8, ill-formed, nested too
    deep, a key given twice or with a lone surrogate, NaN or Infinity (which JSON has not)."""
    value = _read(field, text, most_bytes, most_nesting)
    if not isinstance(value, dict):
        got = f"a JSON {type(value).__name__}"
        raise InvalidInput(field, got, "a JSON object", 'send {"name": value, ...}')
    return value


def read_list(field: str, text: bytes, most_bytes: int, most_nesting: int) -> list[Any]:
    """The list in `text`; InvalidInput as `read_object`."""
    value = _read(field, text, most_bytes, most_nesting)
    if not isinstance(value, list):
        raise InvalidInput(field, f"a JSON {type(value).__name__}", "a JSON list", "send [...]")
    return value


def _read(field: str, text: bytes, most_bytes: int, most_nesting: int) -> Any:
    if len(text) > most_bytes:
        raise InvalidInput(
            field, f"{len(text)} bytes", f"at most {most_bytes}", "shorten its lists and strings"
        )
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > most_nesting:
            raise InvalidInput(
                field, "deeper nesting", f"at most {most_nesting} levels", "flatten it"
            )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if not key.isascii() and _HALF.search(key):
                got = "a key with a lone surrogate"
                raise InvalidInput(field, got, "text", "send valid Unicode")
            if key in found:
                raise InvalidInput(
                    field, f"the key {key[:40]!r} twice", "each key once", "drop one"
                )
            found[key] = value
        return found

    def no_number(word: str) -> NoReturn:
        raise InvalidInput(field, word, "finite numbers", "correct or remove it")

    try:
        return json.loads(text.decode(), object_pairs_hook=unique, parse_constant=no_number)
    except UnicodeDecodeError as error:
        got = f"byte 0x{text[error.start]:02x} at offset {error.start}"
        raise InvalidInput(field, got, "UTF-8", "encode the text as UTF-8") from None
    except json.JSONDecodeError as error:
        got = f"{error.msg} at character {error.pos}"
        raise InvalidInput(
            field, f"ill-formed JSON ({got})", "well-formed JSON", "correct it"
        ) from None
    except ValueError:  # a whole number of thousands of digits
        raise InvalidInput(field, "a number with too many digits", "fewer", "correct it") from None
