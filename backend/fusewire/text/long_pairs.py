"""Shortens pairs of long texts before the tokenizer truncates them.

The library truncates a pair into every combination of the pieces that it cuts off, which takes
hours for two texts of a megabyte each. The shortened texts have the same tokens where tokens are
kept.
"""

from __future__ import annotations

from tokenizers import Encoding

from fusewire.errors import InvalidInput
from fusewire.text.tokenizer import Tokenizer

# Texts with fewer characters per kept token have few such pieces.
_CHARACTERS_PER_TOKEN = 16


def shortened(tokenizer: Tokenizer, pair: tuple[str, str], most: int) -> tuple[str, str]:
    """Returns a shorter pair with the same tokens after `longest_first` truncation to `most`
    tokens. Raises TokenizerFault, and InvalidInput where the tokenizer has no token offsets."""
    characters, few = sum(map(len, pair)), most * _CHARACTERS_PER_TOKEN
    if characters <= few:
        return pair
    if not tokenizer.has_offsets:
        raise InvalidInput(
            "text_pair",
            f"a pair of {characters} characters to truncate",
            f"at most {few} for a folder without tokenizer.json",
            "shorten the texts, or put tokenizer.json into the model folder",
        )
    first, second = tokenizer.encode(list(pair), offsets=True, special_tokens=False)
    # The longer text must stay the longer one: of an odd number of tokens it keeps one more.
    kept = (4 * most, 2 * most) if len(first) > len(second) else (2 * most, 4 * most)
    return (
        _end(tokenizer, pair[0], first, most, kept[0]),
        _end(tokenizer, pair[1], second, most, kept[1]),
    )


def _end(tokenizer: Tokenizer, text: str, whole: Encoding, most: int, kept: int) -> str:
    """Returns the end of a text that truncation keeps. It has about `kept` tokens, or more where
    cutting would change tokens: the last `most` tokens equal those of the whole text."""
    left = tokenizer.truncation_side == "left"
    same = slice(-most, None) if left else slice(most)
    while kept < len(whole):
        part = text[whole.offsets[-kept][0] :] if left else text[: whole.offsets[kept - 1][1]]
        (encoded,) = tokenizer.encode([part], offsets=False, special_tokens=False)
        if encoded.ids[same] == whole.ids[same]:
            return part
        kept *= 4
    return text
