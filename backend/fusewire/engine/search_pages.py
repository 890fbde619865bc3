"""The pages that the beams of searches have beside those of their prompts. Pure policy, as
kv_cache.py, in pages of the same pool.

Beams grow at the same time, so a step may take a page for each. What its fork can take at most is
reserved before the step: until then nobody else is given those pages, and the step is sure of them.
Which beam has which page is not known here (`kernels.BeamPages`), only whose search it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.engine.beam_pasts import PastTree, past_tree
from fusewire.engine.page_pool import OutOfPages, PagePool
from fusewire.engine.sequence_pages import PageNames, SequencePages


class SearchPages:
    """Reserves pages of a pool for the forks of searches, and gives and releases them. A search is
    the sequence that its prompt is stored in."""

    def __init__(self, pool: PagePool, page_size: int, prefix_caching: bool) -> None:
        self._pool = pool
        self._page_size = page_size
        self._prefix_caching = prefix_caching

    def most_pages(self, prompt_tokens: int, tokens: int, beams: int) -> int:
        """How many pages beams after a prompt of `prompt_tokens` take at most, beyond the prompt's,
        until each has `tokens`, of which the last is not stored: `beams` in each span of page_size
        positions, of which the prompt's last page is one where it is not full."""
        if tokens - prompt_tokens < 2:
            return 0
        full, partial = divmod(prompt_tokens, self._page_size)
        return beams * (-(-(tokens - 1) // self._page_size) - full) - bool(partial)

    def pages_for_fork(self, stored: int, beams: int) -> int:
        """How many pages the next fork takes at most, after `stored` tokens of each beam: one for
        each where a span of page_size positions begins."""
        return 0 if stored % self._page_size else beams

    def pages_for_first_fork(self, prompt_tokens: int, tokens: int, beams: int) -> int:
        """As `pages_for_fork`, for the one after the prompt; 0 where there is but one token."""
        if not beams or tokens - prompt_tokens < 2:
            return 0
        return beams - bool(prompt_tokens % self._page_size)

    def begin(self, search: SequencePages) -> list[int]:
        """Begins the beams of a search, of which all tokens are stored. Returns its pages, of which
        the last is the beams' to write and to release where it is not full."""
        pages = search.table.tolist()
        if search.length % self._page_size:
            search.beam_pages.add(search.table.pop())
        return pages

    def reserve(self, searches: Sequence[SequencePages], pages: Sequence[int]) -> None:
        """Reserves pages[i] pages for the next fork of the beams of searches[i]. OutOfPages, and no
        change, when there are too few."""
        wanted = sum(pages)
        if wanted > self._pool.available:
            raise OutOfPages(wanted, self._pool.available)
        self._pool.reserved += wanted
        for search, count in zip(searches, pages, strict=True):
            search.reserved += count

    def take(self, searches: Sequence[SequencePages], pages: Sequence[int]) -> list[int]:
        """Takes pages[i] of the pages that are reserved for searches[i], the rest of which is
        available to others again; ValueError when there are not as many."""
        reserved = [search.reserved for search in searches]
        for count, most in zip(pages, reserved, strict=True):
            if count > most:
                raise ValueError(f"pages: got {count}, wanted at most {most}, reserved")
        self._pool.reserved -= sum(reserved)
        taken = self._pool.take(sum(pages))
        begin = 0
        for search, count in zip(searches, pages, strict=True):
            search.reserved = 0
            search.beam_pages.update(taken[begin : begin + count])
            begin += count
        return taken

    def release(self, search: SequencePages, pages: Sequence[int]) -> None:
        """Releases pages that the search's beams need no more."""
        search.beam_pages.difference_update(pages)
        self._pool.release(pages)

    def end(self, search: SequencePages) -> None:
        """Releases all that a search has for its beams."""
        self._pool.reserved -= search.reserved
        search.reserved = 0
        self._pool.release(search.beam_pages)
        search.beam_pages.clear()

    def suspend(
        self,
        search: SequencePages,
        pasts: Sequence[Sequence[int]],
        tables: Sequence[Sequence[int]],
    ) -> None:
        """Stops beams, which go on from `pasts` when they are readmitted; `tables`: the pages that
        hold them. The full ones are released and stay findable until others need the room."""
        if not self._prefix_caching:
            return
        places: dict[int, int] = {}
        for past, table in zip(pasts, tables, strict=True):
            names = search.names.copy()
            for place in range(len(search.table), len(past) // self._page_size):
                page = table[place]
                if page not in places:
                    places[page] = place
                    name = names.name(place, past)
                    if self._pool.find(name) is None:
                        self._pool.name(page, name)
        self.release(search, sorted(places, key=places.__getitem__, reverse=True))

    def find(self, pasts: Sequence[Sequence[int]], names: PageNames) -> PastTree:
        """The tree of the pasts of a search, of equal lengths, with the pages of theirs that are
        stored. `names`: of the search."""
        full, partial = divmod(len(pasts[0]), self._page_size)
        names_of = []
        for past in pasts:
            of_past = names.copy()
            names_of.append([of_past.name(place, past) for place in range(full)])
        find = self._pool.find if self._prefix_caching else lambda _: None
        return past_tree(names_of, bool(partial), find)
