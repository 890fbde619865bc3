"""How byte-level vocabularies spell bytes: printable Latin-1 characters as themselves, the others,
in order, from U+0100 on (GPT-2, "Language Models are Unsupervised Multitask Learners", section
2.2).
"""

from __future__ import annotations


def _spelled() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPELLED = _spelled()  # of each byte
_BYTE_OF = {character: byte for byte, character in enumerate(SPELLED)}


def bytes_of(piece: str) -> bytes:
    """A byte-level token's characters' bytes, or, where one of them stands for no byte (in an added
    token), its own UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()
