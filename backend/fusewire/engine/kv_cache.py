"""The pages of the KV cache that each sequence has: pure policy, no memory, no kernels.

A page holds the keys and values of `page_size` tokens. What they are depends on these tokens and on
all before them, so a full page is named by the hash of its tokens and of the name of the page
before it; sequences that begin with the same tokens find the same pages. Full pages are thus shared
and never written again; the page that a sequence writes into is its own: a fork copies it first.

Of an encoder-decoder model a sequence has the pages of its source too (source_pages.py). All that
is stored of it depends on the source, so the names of its pages start from the source's. A beam
search has pages for its beams (search_pages.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from fusewire.engine.page_pool import OutOfPages, PagePool
from fusewire.engine.search_pages import SearchPages
from fusewire.engine.sequence_pages import PageNames, SequencePages
from fusewire.engine.source_pages import Source, SourceCache, SourcePages
from fusewire.errors import ConfigurationError

__all__ = ["KvCache", "OutOfPages", "Source", "SourcePages"]


class KvCache:
    """Pages 0 to `pages` - 1 of `page_size` tokens each, given to sequences and shared among them.

    Invariants. Every page is free, used by at least one sequence, or cached (findable, used by
    none). Two sequences have a page in common only if its tokens and all that they depend on (those
    before them, and the source) are the same for both. A page is written only below `reserve`'s
    length, at positions not stored yet, by its one owner. A page that is found has its predecessors
    found too (they are evicted after it). When every sequence is released, no page is used or
    reserved. Pages that are reserved for the next fork of beams are there when they are taken.
    """

    def __init__(self, pages: int, page_size: int, prefix_caching: bool = True) -> None:
        for name, value in (("pages", pages), ("page_size", page_size)):
            if value < 1:
                raise ConfigurationError(f"{name}: got {value}, wanted at least 1; raise it")
        self.page_size = page_size
        self.prefix_caching = prefix_caching
        self.live_tokens = 0  # stored, of all sequences; a shared token counts for each
        self.releases = 0  # sequences that were released
        self.prefix_hit_tokens = 0  # tokens that sequences found there when they began
        self._pool = PagePool(pages)
        self._sources = SourceCache(self._pool, page_size, prefix_caching)
        self.beams = SearchPages(self._pool, page_size, prefix_caching)

    @property
    def pages(self) -> int:
        return self._pool.pages

    @property
    def free(self) -> int:
        return self._pool.free

    @property
    def cached(self) -> int:
        return self._pool.idle

    @property
    def available(self) -> int:
        """Pages that can be given: free and cached ones."""
        return self._pool.available

    @property
    def used(self) -> int:
        return self.pages - self._pool.free - self._pool.idle

    @property
    def reserved(self) -> int:
        """Pages that beams may take at their next forks; they are not available to others."""
        return self._pool.reserved

    @property
    def evictions(self) -> int:
        return self._pool.evictions

    def names(self, source: Source | None = None) -> PageNames:
        """Names for the pages of a new sequence with this source."""
        return PageNames(self.page_size, source)

    def pages_for(self, tokens: int, source: Source | None = None) -> int:
        """Pages of a sequence of `tokens`, with those of its source."""
        of_source = 0 if source is None else self._sources.pages_for(source)
        return self._pages_for(tokens) + of_source

    def has(self, source: Source) -> bool:
        """Whether the source is stored, or will be by this step's encoder pass."""
        return self._sources.has(source)

    def admit(
        self,
        token_ids: Sequence[int],
        names: PageNames,
        room: int = 0,
        spare: int = 0,
        reusable: int | None = None,
        source: Source | None = None,
        for_beams: int = 0,
    ) -> SequencePages:
        """Admits a new sequence, which starts with the pages found for its tokens (whole pages,
        none beyond the first `reusable` tokens, and never the last token, so that there is one left
        to compute) and has pages for `room` tokens. Beside them it has the pages of its `source`:
        those found, or those of an equal one that was admitted in this step, or new ones, which it
        is the only one of the `readers` to have; `for_beams` pages are reserved for its beams'
        first fork.

        OutOfPages, and nothing changed, unless `spare` pages are still available afterwards. Hashes
        only what `names` does not know; what is stored later goes on from `token_ids`.
        """
        pool, most = self._pool, len(token_ids) - 1
        found = self._find(token_ids, names, most if reusable is None else min(reusable, most))
        more = max(0, -(-room // self.page_size) - len(found))
        of_source, wanted = self._sources.find(source)
        wanted += more + for_beams
        if found:
            wanted += pool.idle_among(found)
        left = pool.available - spare
        if wanted > left:
            raise OutOfPages(wanted, left)
        pool.share(found)
        # Nobody can take the pages that were found from here on.
        source_pages = self._sources.admit(source, of_source)
        length = len(found) * self.page_size
        found_tokens = length + (source_pages.tokens if source_pages else 0)
        self.live_tokens += found_tokens
        self.prefix_hit_tokens += found_tokens
        table = array("i", found + pool.take(more))
        pages = SequencePages(names, table, length, source_pages)
        if for_beams:
            self.beams.reserve([pages], [for_beams])
        return pages

    def wanted(self, sequence: SequencePages, length: int) -> int:
        """How many pages `reserve` would take."""
        more = self._pages_for(length) - len(sequence.table)
        return max(0, more) + self._copies(sequence, length)

    def reserve(self, sequence: SequencePages, length: int) -> list[tuple[int, int]]:
        """Makes room for `length` tokens, those not stored yet in pages of the sequence's own.

        Returns the page copies (from, to) to make before anything is written, at most one: of the
        page that was partly written before a fork. OutOfPages, and no change, when there are too
        few.
        """
        copies = self._copies(sequence, length)
        if length <= len(sequence.table) * self.page_size and not copies:
            return []
        more = max(0, self._pages_for(length) - len(sequence.table))
        if more + copies > self.available:
            raise OutOfPages(more + copies, self.available)
        sequence.table.extend(self._pool.take(more))
        if not copies:
            return []
        place = sequence.length // self.page_size
        shared, (own,) = sequence.table[place], self._pool.take(1)
        self._pool.release([shared])
        sequence.table[place] = own
        return [(shared, own)]

    def advance(
        self, sequence: SequencePages, token_ids: Sequence[int], length: int | None = None
    ) -> None:
        """Takes note that the first `length` (default: all) of `token_ids` are stored. Pages that
        became full are found from now on; where an equal one was found before, it replaces the
        sequence's own."""
        length = len(token_ids) if length is None else length
        most = min(len(token_ids), len(sequence.table) * self.page_size)
        if not sequence.length <= length <= most:
            raise ValueError(f"length: got {length}, wanted {sequence.length} to {most}")
        if self.prefix_caching:
            for place in range(sequence.length // self.page_size, length // self.page_size):
                name = sequence.names.name(place, token_ids)
                sequence.table[place] = self._pool.name(sequence.table[place], name)
        self.live_tokens += length - sequence.length
        sequence.length = length

    def store_source(self, source: SourcePages) -> None:
        """Takes note that the encoder pass that fills these pages was computed."""
        self._sources.store(source)
        self.live_tokens += source.tokens * source.readers

    def fork(self, sequence: SequencePages) -> SequencePages:
        """A second sequence with the same stored tokens in the same pages; each `reserve`s before
        it writes. Pages reserved but empty stay with the first; both have the source."""
        table = sequence.table[: self._pages_for(sequence.length)]
        self._pool.share(table)
        self.live_tokens += sequence.length
        if sequence.source is not None:
            sequence.source.readers += 1
            self.live_tokens += sequence.source.tokens
        return SequencePages(sequence.names.copy(), table, sequence.length, sequence.source)

    def readmit(
        self,
        prompt_tokens: int,
        pasts: Sequence[Sequence[int]],
        names: PageNames,
        beams: int,
        spare: int = 0,
        source: Source | None = None,
    ) -> tuple[SequencePages, list[SequencePages], list[int | None]]:
        """Readmits beams that were suspended, which begin again to store their `pasts`, of equal
        lengths, each with the prompt. As `admit`: pages that are found, pages for the rest, and for
        the fork after them.

        Returns the pages of the whole search; for each past its table, of which `length` tokens
        need not be computed; and for each past the index of the one that computes those of them
        which are not stored yet, or None. OutOfPages as `admit`.
        """
        tree = self.beams.find(pasts, names)
        for_fork = beams - tree.partial
        of_source, wanted = self._sources.find(source)
        wanted += tree.to_take + for_fork + self._pool.idle_among(tree.found)
        if wanted > self.available - spare:
            raise OutOfPages(wanted, self.available - spare)
        tree.share(self._pool)
        # Nobody can take the pages that were found, the source's too, from here on.
        source_pages = self._sources.admit(source, of_source)
        tables = tree.take(self._pool)
        found_tokens = 0 if source_pages is None else source_pages.tokens
        self.live_tokens += found_tokens
        self.prefix_hit_tokens += found_tokens + len(tree.found) * self.page_size
        of_prompt = tables[0][: prompt_tokens // self.page_size]
        pages = SequencePages(names, array("i", of_prompt), 0, source_pages)
        pages.beam_pages = {page for table in tables for page in table}.difference(of_prompt)
        self.beams.reserve([pages], [for_fork])
        each = [
            SequencePages(names, array("i", table), branch.begin * self.page_size, source_pages)
            for table, branch in zip(tables, tree.branches, strict=True)
        ]
        return pages, each, [branch.after for branch in tree.branches]

    def resume_beams(self, sequence: SequencePages, prompt_tokens: int) -> None:
        """Takes note that all pasts of beams that were readmitted are stored."""
        self.live_tokens += prompt_tokens
        sequence.length = prompt_tokens

    def advance_beams(self, tokens: int) -> None:
        """Adds `tokens` that running beams have stored, each its own counted; less than 0 where
        some run no more."""
        self.live_tokens += tokens

    def release(self, sequence: SequencePages, beam_tokens: int = 0) -> None:
        """Frees the sequence's pages and its beams', which had stored `beam_tokens`; it is empty
        afterwards. Full pages stay findable until others need the room; the later ones of a
        sequence are evicted before the earlier."""
        self.releases += 1
        if sequence.beam_pages or sequence.reserved:
            self.beams.end(sequence)
        self._pool.release(reversed(sequence.table))
        self.live_tokens -= sequence.length + beam_tokens
        sequence.table, sequence.length = array("i"), 0
        if sequence.source is not None:
            self.live_tokens -= sequence.source.tokens
            self._sources.release(sequence.source)
            sequence.source = None

    def _find(self, token_ids: Sequence[int], names: PageNames, most: int) -> list[int]:
        found: list[int] = []
        if self.prefix_caching:
            for place in range(most // self.page_size):
                page = self._pool.find(names.name(place, token_ids))
                if page is None:
                    break
                found.append(page)
        return found

    def _pages_for(self, length: int) -> int:
        return -(-length // self.page_size)

    def _copies(self, sequence: SequencePages, length: int) -> int:
        """1 when a page that is not full is shared and about to be written, else 0."""
        stored = sequence.length
        if stored % self.page_size == 0 or length <= stored:
            return 0
        return int(self._pool.owners(sequence.table[stored // self.page_size]) > 1)
