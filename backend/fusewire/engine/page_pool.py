"""Pages by number: their owners, the names by which they are found again, which are evicted first.

Pure bookkeeping, no memory. A page is free, owned (by one or more sequences) or idle: without
owner, yet still findable by its name, the hash of what it holds. Pages are allocated from the free
ones, then from the idle one that was released longest ago. Every call takes constant time a page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from fusewire.errors import FusewireError


class OutOfPages(FusewireError):
    """Fewer pages are free or idle than were wanted; nothing was changed."""

    def __init__(self, wanted: int, available: int) -> None:
        self.wanted = wanted
        self.available = available
        super().__init__(
            f"pages: got {available} available, wanted {wanted}; wait until other sequences end, "
            "or give the cache more pages"
        )


class PagePool:
    """Pages 0 to `pages` - 1, all free at first.

    A named page is found as long as it is owned or idle. What a name stands for never changes:
    no page is written once it is named.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.evictions = 0  # idle pages reused for others
        self.reserved = 0  # kept back from what is available, for who has reserved them
        self._owners = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # a stack, page 0 on top
        self._names: list[bytes | None] = [None] * pages
        self._by_name: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # released longest ago first

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def available(self) -> int:
        """Pages that `take` can still give, free and idle ones, less those that are reserved."""
        return len(self._free) + len(self._idle) - self.reserved

    def owners(self, page: int) -> int:
        return self._owners[page]

    def idle_among(self, pages: Iterable[int]) -> int:
        """How many of the pages `share` takes from what is available."""
        return sum([not self._owners[page] for page in pages])

    def find(self, name: bytes) -> int | None:
        """The page of that name, owned or idle."""
        return self._by_name.get(name)

    def take(self, count: int) -> list[int]:
        """Takes `count` pages without names, each with one owner now. OutOfPages when there are
        fewer, reserved ones included."""
        there = len(self._free)
        if count > there + len(self._idle):
            raise OutOfPages(count, there + len(self._idle))
        if count == 1 and there:  # as most are asked for
            page = self._free.pop()
            self._owners[page] = 1
            return [page]
        begin = max(0, there - count)
        pages = self._free[begin:][::-1]
        del self._free[begin:]
        while len(pages) < count:
            pages.append(self._evict())
        for page in pages:
            self._owners[page] = 1
        return pages

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        name = self._names[page]
        assert name is not None
        del self._by_name[name]
        self._names[page] = None
        self.evictions += 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Adds an owner to each page, owned or idle."""
        for page in pages:
            if not self._owners[page]:
                del self._idle[page]
            self._owners[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Takes an owner from each page; without owners a named page is idle, any other free."""
        owners, names, free = self._owners, self._names, self._free
        for page in pages:
            owners[page] = left = owners[page] - 1
            if left:
                continue
            if names[page] is None:
                free.append(page)
            else:
                self._idle[page] = None

    def name(self, page: int, name: bytes) -> int:
        """Names an owned page, unless another has that name already: then the owner gets a share of
        that one for this. Returns the page that the owner has now."""
        known = self._by_name.setdefault(name, page)
        if known == page:
            self._names[page] = name
        else:
            self.share([known])
            self.release([page])
        return known
