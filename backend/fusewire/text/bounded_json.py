"""Parses JSON of a request with limits on size, nesting and number of values. Accepts only valid
JSON.

All limits are checked before parsing, so that parsing takes bounded time and memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from fusewire.errors import InvalidInput, json_type

# Over ten times the size of the longest sensible parameters, with every list at its limit.
MOST_BYTES = 1 << 18
# The object, and lists or objects in it. One more than any field has, so that the error for a field
# with more names it.
MOST_NESTING = 3
# More token ids than a request needs. They take 20 MB when parsed.
MOST_VALUES = 1 << 19
# Lists, objects and members of objects: each takes at least a hundred bytes.
MOST_MEMBERS = 1 << 15

_SLICE_BYTES = 1 << 14  # other threads can run between slices
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[]{},:"))
_HALF = re.compile("[\ud800-\udfff]")


def read_object(
    field: str,
    text: bytes | bytearray,
    most_bytes: int = MOST_BYTES,
    most_nesting: int = MOST_NESTING,
) -> dict[str, Any]:
    """Returns the object in `text`. Raises InvalidInput with `field` for text that is too long, not
    UTF-8, ill-formed, nested too deep or with too many values, for a key that occurs twice or has a
    lone surrogate, and for NaN or Infinity, which are not JSON."""
    value = _read(field, text, most_bytes, most_nesting)
    if not isinstance(value, dict):
        remedy = 'send {"name": value, ...}'
        raise InvalidInput(field, json_type(value), "a JSON object", remedy)
    return value


def read_list(field: str, text: bytes, most_bytes: int, most_nesting: int) -> list[Any]:
    """Returns the list in `text`. Raises InvalidInput as `read_object`."""
    value = _read(field, text, most_bytes, most_nesting)
    if not isinstance(value, list):
        raise InvalidInput(field, json_type(value), "a JSON list", "send [...]")
    return value


def _read(field: str, text: bytes | bytearray, most_bytes: int, most_nesting: int) -> Any:
    if len(text) > most_bytes:
        raise InvalidInput(
            field, f"{len(text)} bytes", f"at most {most_bytes}", "shorten its lists and strings"
        )
    _check_structure(field, text, most_nesting)

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
    except ValueError:  # an integer of thousands of digits
        raise InvalidInput(field, "a number with too many digits", "fewer", "correct it") from None


def _check_structure(field: str, text: bytes | bytearray, most_nesting: int) -> None:
    """Raises InvalidInput for more nesting or values than allowed. Text that is not JSON may pass
    if a parser stops before it exceeds a limit."""
    depth = values = members = quotes = 0
    for structure, more_quotes in _structure(text):
        for bracket in structure.translate(None, b",:"):
            depth += 1 if bracket in b"[{" else -1
            if depth > most_nesting:
                wanted = f"at most {most_nesting} levels"
                raise InvalidInput(field, "deeper nesting", wanted, "flatten it")
            if depth < 0:
                return
        containers = structure.count(b"[") + structure.count(b"{")
        values += containers + structure.count(b",")
        members += containers + structure.count(b":")
        quotes += more_quotes
        for most, found, what in (
            (MOST_VALUES, values, "values"),
            (MOST_VALUES + MOST_MEMBERS, quotes // 2, "strings"),
            (MOST_MEMBERS, members, "lists, objects and members of objects"),
        ):
            if found > most:
                got, wanted = f"over {most} {what}", f"at most {most}"
                raise InvalidInput(field, got, wanted, "send several requests")


def _structure(text: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    """Yields, slice by slice, the brackets, commas and colons outside strings, and the number of
    quotes that delimit strings."""
    start, in_string = 0, False
    while start < len(text):
        piece = text[start : start + _SLICE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # do not split an escape
            piece = text[start : start + _SLICE_BYTES + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[in_string::2]).translate(None, _NO_STRUCTURE), len(parts) - 1
        in_string ^= len(parts) % 2 == 0
