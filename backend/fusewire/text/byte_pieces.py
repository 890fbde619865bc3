"""The bytes that vocabulary pieces represent, for vocabularies of bytes, in which a character may
take several tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")  # as the library parses it


def decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    """Returns a decoder's steps as in tokenizer.json, with nested sequences flattened."""

    def flat(step: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if step["type"] != "Sequence":
            return [step]
        return [inner for outer in step["decoders"] for inner in flat(outer)]

    return [] if decoder is None else [*flat(json.loads(decoder.__getstate__()))]


def joins_bytes(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder converts each character of a token to a byte."""
    return [step["type"] for step in steps] == ["ByteLevel"]


def byte_of_token(piece: str) -> bytes | None:
    """Returns the byte of a ByteFallback token, or None for another token."""
    return bytes([int(piece[3:5], 16)]) if BYTE_TOKEN.fullmatch(piece) else None
