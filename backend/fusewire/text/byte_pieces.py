"""The bytes that pieces of a vocabulary stand for, where it spells bytes: several tokens may share
those of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")  # as the library parses them


def decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    """A decoder's steps as tokenizer.json spells them, sequences in sequences laid flat."""

    def flat(step: dict[str, Any]) -> Iterable[dict[str, Any]]:
        if step["type"] != "Sequence":
            return [step]
        return [inner for outer in step["decoders"] for inner in flat(outer)]

    return [] if decoder is None else [*flat(json.loads(decoder.__getstate__()))]


def joins_bytes(steps: list[dict[str, Any]]) -> bool:
    """Whether a decoder takes each character of a token for a byte."""
    return [step["type"] for step in steps] == ["ByteLevel"]


def byte_of_token(piece: str) -> bytes | None:
    """The byte that a token of ByteFallback is; None of others."""
    return bytes([int(piece[3:5], 16)]) if BYTE_TOKEN.fullmatch(piece) else None
