"""Converts texts to token ids as transformers' processors of CLIP and SigLIP do."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_files import CONFIG
from fusewire.text.tokenizer_library import TokenizerFault
from fusewire.weights import read_json
from fusewire.weights.formats import TOKENIZER as FILE

# Texts have few tokens. Tokenising longer texts only to refuse them would take seconds.
_MOST_CHARACTERS = 1 << 16
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PADS_LEFT = ("Siglip2Tokenizer", "GemmaTokenizer", "GemmaTokenizerFast")  # by default


class TowerTokenizer:
    """A folder's tokenizer for texts that are compared with images."""

    def __init__(self, folder: Path, *, max_length: int, padded: bool) -> None:
        """`padded`: every text has `max_length` tokens. Raises CheckpointError where the folder has
        no tokenizer, or padding is needed and there is no padding token."""
        tokenizer = Tokenizer.load(folder)
        if tokenizer is None:
            raise CheckpointError(
                f"{FILE}: got no such file, wanted the tokenizer of the model's texts; save it "
                "with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        if padded and tokenizer.pad_id is None:
            raise CheckpointError(
                f"{CONFIG}: pad_token: got none, wanted the token that texts are padded with; "
                "download the file again"
            )
        config = read_json(folder, CONFIG) or {}
        kind = config.get("tokenizer_class")
        if kind == "Siglip2Tokenizer":
            tokenizer.lowercase()
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._cut = {
            "max_length": max_length,
            "stride": 0,
            "strategy": "longest_first",
            "direction": tokenizer.truncation_side,
        }
        self._pad_id = tokenizer.pad_id if padded else None
        self._pads_left = _padding_side(config) == "left"
        self._canonical = kind == "SiglipTokenizer"
        self._lower = config.get("do_lower_case", True) is True

    def ids(
        self, texts: Sequence[str], *, field: str = "texts", truncate: bool = False
    ) -> list[NDArray[np.int64]]:
        """Returns the ids of each text, including special tokens. Raises InvalidInput with `field`
        and the first text that cannot be tokenised, or is too long without `truncate`. Not
        thread-safe."""
        remedy = "shorten the text"
        for index, text in enumerate(texts):
            if len(text) > _MOST_CHARACTERS:
                got, wanted = f"{len(text)} characters at {index}", f"at most {_MOST_CHARACTERS}"
                raise InvalidInput(field, got, wanted, remedy)
        if self._canonical:
            texts = [canonical(text, lower=self._lower) for text in texts]
        try:
            cut = self._cut if truncate else None
            encodings = self._tokenizer.encode(list(texts), offsets=False, cut=cut)
        except TokenizerFault as fault:
            got, wanted = f"a text that cannot be tokenised ({fault})", "plain text"
            raise InvalidInput(field, got, wanted, "correct it") from None
        for index, encoding in enumerate(encodings):
            if len(encoding.ids) > self._max_length:
                raise InvalidInput(
                    field,
                    f"{len(encoding.ids)} tokens at {index}",
                    f"at most {self._max_length}",
                    remedy,
                )
        return [self._whole(np.array(encoding.ids, np.int64)) for encoding in encodings]

    def _whole(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._pad_id is None:
            return ids
        missing = self._max_length - len(ids)
        widths = (missing, 0) if self._pads_left else (0, missing)
        return np.pad(ids, widths, constant_values=self._pad_id)


def _padding_side(config: dict[str, Any]) -> str:
    side = config.get("padding_side")
    if side is None:
        side = "left" if config.get("tokenizer_class") in _PADS_LEFT else "right"
    if side not in ("left", "right"):
        raise CheckpointError(
            f"{CONFIG}: padding_side: got {side!r}, wanted left or right; correct the file"
        )
    return str(side)


def canonical(text: str, *, lower: bool) -> str:
    """Returns the text as in SigLIP's training: without punctuation, with one space between words.
    transformers does this outside tokenizer.json."""
    plain = (text.lower() if lower else text).translate(_WITHOUT_PUNCTUATION)
    return re.sub(r"\s+", " ", plain).strip()
