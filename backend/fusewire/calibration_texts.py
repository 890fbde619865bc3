"""The texts that a model's quantisation error is measured with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import ConfigurationError
from fusewire.text.tokenizer import Tokenizer

MOST_TEXTS = 64
MOST_TOKENS = 128  # per text
_LONGEST_LINE = 1 << 14  # characters that are read per line

Ids = NDArray[np.int64]


def calibration_texts(
    folder: Path, file: Path | None, max_length: int, vocab_size: int
) -> list[Ids]:
    """Returns the token ids of the first MOST_TEXTS lines of `file` that are not empty, encoded by
    the tokenizer of the model in `folder`; without a file, random ids in 0..vocab_size - 1, of
    random lengths. Each text has at most MOST_TOKENS and at most `max_length` tokens. Raises
    ConfigurationError for a file without texts, or one that is not UTF-8."""
    longest = min(MOST_TOKENS, max_length)
    if file is None:
        random = np.random.default_rng(0)
        lengths = random.integers(1, longest + 1, MOST_TEXTS)
        return [random.integers(0, vocab_size, length) for length in lengths]
    try:
        with open(file, encoding="utf-8-sig") as opened:
            texts = list(islice(filter(None, map(str.strip, _beginnings(opened))), MOST_TEXTS))
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"calibrate: {file}: got bytes that are no UTF-8 ({error.reason}), wanted a text a "
            "line; convert the file"
        ) from None
    encoded = Tokenizer.required(folder).encode(list(texts), offsets=False) if texts else []
    found = [np.array(each.ids[:longest], np.int64) for each in encoded if each.ids]
    if not found:
        raise ConfigurationError(
            f"calibrate: {file}: got no text, wanted one a line; write some into it"
        )
    return found


def _beginnings(file: TextIO) -> Iterator[str]:
    """Yields the beginning of each line, up to _LONGEST_LINE characters."""
    while line := file.readline(_LONGEST_LINE):
        yield line
        while line and not line.endswith("\n"):
            line = file.readline(_LONGEST_LINE)
