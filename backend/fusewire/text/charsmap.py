"""The replacements that a SentencePiece model applies to a text first, exactly as it applies them.

They are compiled into a double-array trie over UTF-8 (Yata et al., 2007, in the layout of
Darts-clone), whose values are offsets into a block of zero-terminated texts. The normaliser of
`tokenizers` for it replaces grapheme by grapheme, and so loses marks and Hangul. Here the longest
matching rule is applied at every character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError

# The rules of NFKC with case folding take 250 KB: 230,000 keys of up to 13 bytes.
_MOST_BYTES = 2 << 20
_MOST_KEYS = 1 << 20
_MOST_KEY_BYTES = 64


class Charsmap:
    """Applies the longest matching rule at each character, from left to right."""

    def __init__(self, blob: bytes, name: str) -> None:
        """`name`: the file that messages name. Raises CheckpointError for a damaged blob."""
        self._name = name
        self._places: dict[str, int] = {}  # key -> offset of its replacement in `_texts`
        self._texts = b""
        if blob:
            self._read(blob)
        self._longest = max(map(len, self._places), default=0)
        # The keys of one character, and all characters after the first of longer keys. Every match
        # contains one of them: a match begins at such a character, or at the one before it.
        ends = (key if len(key) == 1 else key[1:] for key in self._places)
        self._special = frozenset("".join(ends))
        self._runs = re.compile(f"[{_class(self._special)}]+") if self._special else None

    def __len__(self) -> int:
        return len(self._places)

    def apply(self, text: str) -> str:
        if self._runs is None or self._special.isdisjoint(text):
            return text
        parts, at = [], 0
        for run in self._runs.finditer(text):
            begin = max(at, run.start() - 1)
            parts.append(text[at:begin])
            parts += self._replaced(text[begin : run.end()])
            at = run.end()
        return "".join([*parts, text[at:]])

    def _replaced(self, run: str) -> Iterator[str]:
        at = 0
        while at < len(run):
            for end in range(min(len(run), at + self._longest), at, -1):
                place = self._places.get(run[at:end])
                if place is not None:
                    yield self._texts[place : self._texts.index(b"\0", place)].decode()
                    at = end
                    break
            else:
                yield run[at]
                at += 1

    def _read(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if len(blob) > _MOST_BYTES or size % 4 or not 4 <= size <= len(blob) - 5 or blob[-1]:
            raise self._damaged(f"{len(blob)} bytes, {size} of them a trie")
        self._texts = blob[4 + size :]
        try:
            self._texts.decode()
            for keys, places in self._keys(np.frombuffer(blob, "<u4", size // 4, 4)):
                # An offset into the middle of a character is damage.
                starts = np.frombuffer(self._texts, np.uint8)[places % len(self._texts)]
                if len(self._places) + len(keys) > _MOST_KEYS:
                    raise self._damaged(f"more than {_MOST_KEYS} rules")
                if (places >= len(self._texts)).any() or ((starts & 0xC0) == 0x80).any():
                    raise self._damaged(f"places beyond its {len(self._texts)} bytes of texts")
                ended = np.pad(keys, ((0, 0), (0, 1)))
                names = ended.tobytes().decode().split("\0")[:-1]
                self._places.update(zip(names, places.tolist(), strict=True))
        except UnicodeDecodeError:
            raise self._damaged("rules that are not UTF-8") from None

    def _keys(
        self, units: NDArray[np.uint32]
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Yields (keys [n, length], values [n]) for each length. The index of a unit is its
        parent's offset XOR its own label. Equal suffixes of keys share their units."""
        offsets = ((units >> 10) << ((units & 512) >> 6)).astype(np.int64)
        labels = (units & 0x800000FF).astype(np.int64)
        children = np.flatnonzero((labels > 0) & (labels < 256))
        parents = children ^ labels[children]
        order = np.argsort(parents, kind="stable")
        children, parents = children[order], parents[order]

        nodes, keys = offsets[:1], np.empty((1, 0), np.uint8)
        while nodes.size:
            begin, end = np.searchsorted(parents, nodes), np.searchsorted(parents, nodes, "right")
            counts = end - begin
            if counts.sum() > _MOST_KEYS or keys.shape[1] > _MOST_KEY_BYTES:
                raise self._damaged("a trie too large, or with a circle")
            own = np.repeat(np.arange(nodes.size), counts)
            within = np.arange(own.size) - np.repeat(np.cumsum(counts) - counts, counts)
            units_below = children[begin[own] + within]
            last = labels[units_below].astype(np.uint8)[:, None]
            keys = np.concatenate([keys[own], last], axis=1)
            nodes = units_below ^ offsets[units_below]
            ends = np.flatnonzero((units[units_below] >> 8) & 1)
            if ends.size:
                if nodes[ends].max() >= units.size:
                    raise self._damaged("a trie with a value beyond its end")
                yield keys[ends], (units[nodes[ends]] & 0x7FFFFFFF).astype(np.int64)

    def _damaged(self, got: str) -> CheckpointError:
        return CheckpointError(
            f"{self._name}: precompiled_charsmap: got {got}, wanted rules of replacement; download "
            "the file again"
        )


def _class(characters: frozenset[str]) -> str:
    return "".join(sorted(map(re.escape, characters)))
