"""The pages of a sequence, and their names."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from fusewire.engine.source_pages import Source, SourcePages

_NAME_BYTES = 32  # a collision would show one client another's context: nobody can make one


class PageNames:
    """The names of a sequence's full pages, each computed once.

    name(page) = BLAKE2b-256(name(page - 1), ids of the page as int64); of the first page the name
    of the source stands in place of the former, or nothing.
    """

    def __init__(self, page_size: int, source: Source | None = None) -> None:
        self._page_size = page_size
        self._source = source
        self._names: list[bytes] = []

    def name(self, page: int, token_ids: Sequence[int]) -> bytes:
        """The name of a full page of `token_ids`, which only ever grow between calls."""
        while len(self._names) <= page:
            first = len(self._names) * self._page_size
            ids = array("q", token_ids[first : first + self._page_size]).tobytes()
            self._names.append(blake2b(self._before + ids, digest_size=_NAME_BYTES).digest())
        return self._names[page]

    @property
    def _before(self) -> bytes:
        """The name that the next one starts from."""
        if self._names:
            return self._names[-1]
        return b"" if self._source is None else self._source.name

    def copy(self) -> PageNames:
        twin = PageNames(self._page_size, self._source)
        twin._names = self._names[:]
        return twin


@dataclass(eq=False, slots=True)
class SequencePages:
    """What a sequence has of the cache: page table[i] holds its positions i * page_size on."""

    names: PageNames
    table: array[int] = field(default_factory=lambda: array("i"))
    length: int = 0  # tokens stored
    source: SourcePages | None = None
    beam_pages: set[int] = field(default_factory=set)  # that beams after these tokens have
    reserved: int = 0  # pages that they may take at their next fork
