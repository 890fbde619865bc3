"""The requests of both served benchmarks: texts, and the same sequences as ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """Texts and their ids, in requests of `size`; a client has `under_way` of them in flight.

    The engine alone gets `a_call` sequences per call, whatever the requests hold.
    """

    name: str
    texts: list[str]
    ids: list[np.ndarray]
    as_ids: bool
    size: int
    under_way: int
    a_call: int

    def requests(self) -> list[dict[str, Any]]:
        """Returns the keyword arguments of the client's `embed`, one dict per request."""
        found: list[dict[str, Any]] = []
        for begin in range(0, len(self.texts), self.size):
            part = slice(begin, begin + self.size)
            if not self.as_ids:
                found.append({"texts": self.texts[part]})
                continue
            rows = self.ids[part]
            longest = max(map(len, rows))
            ids = np.zeros((len(rows), longest), np.int64)
            for row, sequence in zip(ids, rows, strict=True):
                row[: len(sequence)] = sequence
            found.append({"ids": ids})
            if len(rows) > 1:  # the ids of one request are rectangular
                mask = np.array([np.arange(longest) < len(row) for row in rows], np.int64)
                found[-1]["attention_mask"] = mask
        return found

    def tokens(self, sequences: int) -> list[int]:
        """Returns the tokens of each group of `sequences` sequences, in order."""
        lengths = [len(ids) for ids in self.ids]
        return [sum(lengths[i : i + sequences]) for i in range(0, len(lengths), sequences)]


class Texts:
    """Texts of whole words, whose number of tokens is known, and their ids."""

    def __init__(self, folder: Path) -> None:
        """`folder`: has a tokenizer.json of BERT's kind."""
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab()
        self._words = sorted(w for w in vocabulary if w.isascii() and w.isalpha() and w.islower())
        self._rng = np.random.default_rng(0)

    def some(self, count: int, least: int, most: int) -> tuple[list[str], list[np.ndarray]]:
        """Returns texts of `least` to `most` tokens, and their ids."""
        lengths = self._rng.integers(least - 2, most - 1, count)  # [CLS] and [SEP] are added
        texts = [" ".join(self._rng.choice(self._words, length)) for length in lengths]
        return texts, [np.array(found.ids) for found in self._tokenizer.encode_batch(texts)]
