"""Pairs of long texts, shortened before the tokenizer truncates them.

The library truncates a pair into every combination of the pieces that it cuts off: with two texts
of a megabyte each that takes hours. What is left here has the same tokens where they are kept.
"""

from __future__ import annotations

from tokenizers import Encoding

from fusewire.errors import InvalidInput
from fusewire.text.tokenizer import Tokenizer

# Texts with fewer characters for each token that is kept have few such pieces.
_CHARACTERS_PER_TOKEN = 16


def shortened(tokenizer: Tokenizer, pair: tuple[str, str], most: int) -> tuple[str, str]:
    """Texts of which `longest_first` truncation to `most` tokens keeps the same. Raises
    TokenizerFault, and InvalidInput where the tokenizer cannot say where tokens stand."""
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
    # The longer text stays the longer one: of an odd number of tokens it keeps one more.
    kept = (4 * most, 2 * most) if len(first) > len(second) else (2 * most, 4 * most)
    return (
        _end(tokenizer, pair[0], first, most, kept[0]),
        _end(tokenizer, pair[1], second, most, kept[1]),
    )


def _end(tokenizer: Tokenizer, text: str, whole: Encoding, most: int, kept: int) -> str:
    """The end of a text that truncation leaves, in about `kept` tokens, or in more where others
    would come of it: the last `most` are those of the whole text."""
    left = tokenizer.truncation_side == "left"
    same = slice(-most, None) if left else slice(most)
    while kept < len(whole):
        part = text[whole.offsets[-kept][0] :] if left else text[: whole.offsets[kept - 1][1]]
        (encoded,) = tokenizer.encode([part], offsets=False, special_tokens=False)
        if encoded.ids[same] == whole.ids[same]:
            return part
        kept *= 4
    return text
