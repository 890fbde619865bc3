"""The pages of sources: keys and values of what an encoder made of a text, which a decoder attends
to at every step. Pure policy, as kv_cache.py, in pages of the same pool.

An encoder's tokens see each other in both directions, so a source is stored whole, by one encoder
pass; its pages are named by the hash of all its tokens, and found all or not at all. No page is
written again once it is stored, the last one included: whoever reads the source may share them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.page_pool import PagePool

_NAME_BYTES = 32


class Source:
    """The tokens that an encoder reads for a sequence, or the `features` of an audio input."""

    def __init__(
        self, token_ids: Sequence[int], features: NDArray[np.float32] | None = None
    ) -> None:
        self.token_ids = token_ids
        self.features = features
        # Computed when they are asked for.
        self._packed: bytes | None = None
        self._name: bytes | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def packed(self) -> bytes:
        """The tokens as int64."""
        if self._packed is None:
            self._packed = array("q", self.token_ids).tobytes()
        return self._packed

    @property
    def name(self) -> bytes:
        """BLAKE2b-256 of the tokens, or of the features: pages of its own are named by it, and
        those of the decoder's tokens start from it."""
        if self._name is None:
            if self.features is None:
                read, person = self.packed, b"source"
            else:
                read, person = self.features.tobytes(), b"audio"
            self._name = blake2b(read, digest_size=_NAME_BYTES, person=person).digest()
        return self._name

    def page_name(self, page: int) -> bytes:
        """The name of a page of the source: longer than that of a decoder's page, so never equal to
        one."""
        return self.name + page.to_bytes(4, "little")


@dataclass(eq=False, slots=True)
class SourcePages:
    """The pages of one source, which a sequence has together with its forks, and with those that
    began in the same step with an equal one: table[i] holds the positions i * page_size on."""

    source: Source
    table: array[int]
    stored: bool  # whether an encoder pass has stored it
    readers: int = 1  # sequences that have it

    @property
    def tokens(self) -> int:
        """Tokens that are stored: all, or 0."""
        return len(self.source) if self.stored else 0


# What there is of a source: its pages that are stored, or those of an equal one that this step's
# encoder pass fills, or none.
Found = list[int] | SourcePages | None


class SourceCache:
    """Takes pages of a pool for sources, and finds those of sources stored before."""

    def __init__(self, pool: PagePool, page_size: int, prefix_caching: bool) -> None:
        self._pool = pool
        self._page_size = page_size
        self._prefix_caching = prefix_caching
        self._coming: dict[bytes, SourcePages] = {}  # by name: this step's encoder pass fills them

    def pages_for(self, source: Source) -> int:
        return -(-len(source) // self._page_size)

    def has(self, source: Source) -> bool:
        """Whether the source is stored, or will be by this step's encoder pass."""
        return self._prefix_caching and (source.name in self._coming or bool(self._find(source)))

    def find(self, source: Source | None) -> tuple[Found, int]:
        """(what there is of a source, how many of the available pages it takes)."""
        if source is None:
            return None, 0
        if self._prefix_caching:
            coming = self._coming.get(source.name)
            if coming is not None:
                return coming, 0
            if found := self._find(source):
                return found, self._pool.idle_among(found)
        return None, self.pages_for(source)

    def _find(self, source: Source) -> list[int]:
        """All pages of a source that is stored; empty where one is missing."""
        found: list[int] = []
        for place in range(self.pages_for(source)):
            page = self._pool.find(source.page_name(place))
            if page is None:
                return []
            found.append(page)
        return found

    def admit(self, source: Source | None, found: Found) -> SourcePages | None:
        """The pages of a source, if any: what was `found` just now, or pages that an encoder pass
        is to fill. There are enough available."""
        if source is None:
            return None
        if isinstance(found, SourcePages):
            found.readers += 1
            return found
        if found is not None:
            self._pool.share(found)
            return SourcePages(source, array("i", found), stored=True)
        table = array("i", self._pool.take(self.pages_for(source)))
        pages = SourcePages(source, table, stored=False)
        if self._prefix_caching:
            self._coming[source.name] = pages
        return pages

    def store(self, pages: SourcePages) -> None:
        """Takes note that the encoder pass was computed: the pages are found from now on. Where
        equal ones are left of a source that was evicted in part, those replace them."""
        if not pages.readers:  # finished meanwhile
            return
        pages.stored = True
        if self._prefix_caching:
            del self._coming[pages.source.name]
            for place, page in enumerate(pages.table):
                pages.table[place] = self._pool.name(page, pages.source.page_name(place))

    def release(self, pages: SourcePages) -> None:
        """Takes a reader from the pages; the last one frees them, and they stay findable until
        others need the room."""
        pages.readers -= 1
        if not pages.readers:
            if self._coming and self._coming.get(pages.source.name) is pages:
                del self._coming[pages.source.name]
            self._pool.release(pages.table)
