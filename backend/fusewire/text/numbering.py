"""What a tokenizer without tokenizer.json needs beside the library's part: the model's token ids,
which are not in the order of the file, and a normaliser that the library cannot serialise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import tokenizers

from fusewire.text.languages import Languages
from fusewire.text.piece_text import Joining
from fusewire.text.sentencepiece_backend import Text


class Normalizer(Protocol):
    """A normaliser that the library calls with a text. `lowering` returns one that lower-cases
    first, `inside` one that treats its input as part of a text."""

    def normalize(self, text: Text) -> None: ...
    def lowering(self) -> Normalizer: ...
    def inside(self) -> Normalizer: ...


@dataclass(frozen=True)
class Numbering:
    """`ids`: the model's id of each token of the library; several may share one. `names`: the
    strings of the model's ids in the vocabulary of its output. `prefixes`: the tokens (`>>fra<<`)
    that may precede a text or follow a special token. The library's token is MARK and the prefix,
    or UNKNOWN for other prefixes; None where there are no prefixes. `joining`: how pieces become
    text, where the library's decoder does not define it. `cleans_spaces`: whether loose spaces are
    removed where the files do not say."""

    MARK = "\0"
    UNKNOWN = "\0\0"

    ids: Sequence[int]
    names: Mapping[int, str]
    normalizer: Normalizer
    special: Mapping[str, int]  # content -> the model's id
    skipped: frozenset[int]  # special ids of the model's output
    languages: Languages
    prefixes: frozenset[str] | None = None
    joining: Joining | None = None
    cleans_spaces: bool = False

    def marked(self, text: str) -> str:
        """Returns the text with the language before it replaced by the library's token."""
        if self.prefixes is None or ">>" not in text:
            return text
        return self._fronts.sub(self._mark, text)

    def _mark(self, found: re.Match[str]) -> str:
        before, code = found.groups()
        return before + (self.MARK + code if code in (self.prefixes or ()) else self.UNKNOWN)

    @cached_property
    def _fronts(self) -> re.Pattern[str]:
        special = "|".join(map(re.escape, self.special))
        return re.compile(rf"(\A|{special})(>>(?:(?!{special}).)*?<<)", re.DOTALL)

    def renumbered(self, encoding: tokenizers.Encoding) -> Any:
        return _Renumbered(encoding, self.ids)


class _Renumbered:
    """An Encoding with the model's ids."""

    def __init__(self, encoding: tokenizers.Encoding, ids: Sequence[int]) -> None:
        self._encoding = encoding
        self._ids = ids
        self.ids = [ids[token] for token in encoding.ids]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def overflowing(self) -> list[_Renumbered]:
        return [_Renumbered(each, self._ids) for each in self._encoding.overflowing]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoding, name)
