"""What a device would hold in the pages of a cache: the tiny model that policy is tested against.

In place of a token's keys and values stands what they depend on: all tokens up to it, and those of
its source; of a token of a source all of the source and its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewire.engine.sequence_pages import SequencePages
from fusewire.engine.source_pages import SourcePages

Stored = tuple[object, ...]


class PagedMemory:
    """`pages` pages of `page_size` places, each empty (None) or written."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._pages: list[list[Stored | None]] = [[None] * page_size for _ in range(pages)]

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """All at once, as a kernel does: no page may be both source and target, or target twice."""
        targets = [target for _, target in copies]
        assert len(set(targets)) == len(targets)
        assert not {source for source, _ in copies} & set(targets)
        for source, target in copies:
            self._pages[target] = self._pages[source][:]

    def write(
        self,
        pages: SequencePages,
        token_ids: Sequence[int],
        first: int,
        tokens: int,
        everyone: Iterable[SequencePages],
    ) -> None:
        """Writes tokens first to first + tokens - 1; nobody of `everyone` else has these pages."""
        places = range(first // self.page_size, (first + tokens - 1) // self.page_size + 1)
        written = {pages.table[place] for place in places}
        for other in everyone:
            assert other is pages or not written & set(other.table)
        self._check_source(pages)  # tokens attend to it
        for position in range(first, first + tokens):
            page = pages.table[position // self.page_size]
            self._pages[page][position % self.page_size] = _stored(pages, token_ids, position)

    def put(self, page: int, pages: SequencePages, token_ids: Sequence[int]) -> None:
        """Writes the last of the tokens."""
        position = len(token_ids) - 1
        self._pages[page][position % self.page_size] = _stored(pages, token_ids, position)

    def expect(
        self, table: Sequence[int], pages: SequencePages, token_ids: Sequence[int], end: int
    ) -> None:
        """That the pages of `table` hold the first `end` tokens, of the source of `pages`."""
        for position in range(end):
            read = self._pages[table[position // self.page_size]][position % self.page_size]
            assert read == _stored(pages, token_ids, position)

    def encode(self, source: SourcePages, everyone: Iterable[SequencePages]) -> None:
        """Writes a source; nobody of `everyone` has its pages for anything else."""
        written = set(source.table)
        for other in everyone:
            assert not written & set(other.table)
            assert other.source is source or not written & set(_source_table(other))
        for position, stored in enumerate(_stored_source(source)):
            page = source.table[position // self.page_size]
            self._pages[page][position % self.page_size] = stored

    def check(self, pages: SequencePages, token_ids: Sequence[int]) -> None:
        """The sequence reads its own tokens, with nothing but its own tokens before them."""
        for position in range(pages.length):
            page = pages.table[position // self.page_size]
            read = self._pages[page][position % self.page_size]
            assert read == _stored(pages, token_ids, position)
        if pages.source is not None and pages.source.stored:
            self._check_source(pages)

    def _check_source(self, pages: SequencePages) -> None:
        for position, stored in enumerate(_stored_source(pages.source)):
            page = _source_table(pages)[position // self.page_size]
            assert self._pages[page][position % self.page_size] == stored


def _stored(pages: SequencePages, token_ids: Sequence[int], position: int) -> Stored:
    source = None if pages.source is None else tuple(pages.source.source.token_ids)
    return (source, *token_ids[: position + 1])


def _stored_source(source: SourcePages | None) -> list[Stored]:
    if source is None:
        return []
    token_ids = tuple(source.source.token_ids)
    return [("source", token_ids, position) for position in range(len(token_ids))]


def _source_table(pages: SequencePages) -> Sequence[int]:
    return () if pages.source is None else pages.source.table
