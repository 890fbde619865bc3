"""The characters by which byte-level vocabularies represent bytes: printable Latin-1 characters
represent themselves, and the other bytes are U+0100 and following, in order (GPT-2, "Language
Models are Unsupervised Multitask Learners", section 2.2)."""

from __future__ import annotations


def _spelled() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPELLED = _spelled()  # character of each byte
_BYTE_OF = {character: byte for byte, character in enumerate(SPELLED)}


def bytes_of(piece: str) -> bytes:
    """Returns the bytes of a byte-level token. Where one of its characters represents no byte (in
    an added token), returns the token's own UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()
