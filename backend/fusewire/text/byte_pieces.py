"""The bytes that pieces of a vocabulary stand for, where it spells bytes: several tokens may share
those of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")  # as the library parses them


def _byte_of_character() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: printable Latin-1 characters as themselves, the
    others, in order, from U+0100 on (GPT-2, "Language Models are Unsupervised Multitask Learners",
    section 2.2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_of_character()


def bytes_of(piece: str) -> bytes:
    """A byte-level token's characters' bytes, or, where one of them stands for no byte (in an added
    token), its own UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()


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
