"""What the beams of a search have stored: a tree, whose common beginnings are stored once.

A search that was preempted comes back with as many prompts as its beams have different pasts. Each
is cut into pages; equal pages after equal pages are one, which the first past that has it computes
and the others wait for. Pure policy, as kv_cache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusewire.engine.page_pool import PagePool


def pasts_of(
    prompt: Sequence[int], histories: Sequence[Sequence[int]]
) -> tuple[list[list[int]], list[int]]:
    """(the different pasts of beams with these `histories` after a prompt, the index of each beam's
    past). A past is all that a beam has stored: the prompt and all but its last token."""
    numbers: dict[tuple[int, ...], int] = {}
    of_beams = [numbers.setdefault(tuple(each[:-1]), len(numbers)) for each in histories]
    return [[*prompt, *past] for past in numbers], of_beams


@dataclass
class Branch:
    """One past in the tree: its first `found` pages hold what they should; those after, up to
    `begin`, an earlier past `after` computes; it computes the rest itself."""

    names: list[bytes]  # of its full pages
    partial: bool  # whether there is one page more
    found: int
    begin: int
    after: int | None


class PastTree:
    """The pages of several pasts."""

    def __init__(self, branches: list[Branch], found: dict[bytes, int]) -> None:
        self.branches = branches
        self._found = found  # pages by name
        self._own = {name for each in branches for name in each.names} - found.keys()

    @property
    def partial(self) -> int:
        return sum(each.partial for each in self.branches)

    @property
    def found(self) -> list[int]:
        return list(self._found.values())

    @property
    def to_take(self) -> int:
        return len(self._own) + self.partial

    def share(self, pool: PagePool) -> None:
        """Adds an owner to the pages that were found: nobody evicts them from here on."""
        pool.share(self._found.values())

    def take(self, pool: PagePool) -> list[list[int]]:
        """The table of each past, with new pages beside those found, which are shared before."""
        pages = dict(self._found)
        tables = []
        for each in self.branches:
            for name in each.names:
                if name not in pages:
                    (pages[name],) = pool.take(1)
            tables.append([pages[name] for name in each.names] + pool.take(each.partial))
        return tables


def past_tree(
    names_of: Sequence[list[bytes]],
    partial: bool,
    find: Callable[[bytes], int | None],
) -> PastTree:
    """The tree of several pasts. `names_of`: the names of each one's full pages. `partial`: whether
    each has one page more, which is not full. `find`: the page of a name, where one is stored."""
    found: dict[bytes, int] = {}
    owner: dict[bytes, int] = {}
    branches = []
    for index, names in enumerate(names_of):
        stored = 0
        while stored < len(names) and (page := find(names[stored])) is not None:
            found[names[stored]] = page
            stored += 1
        begin = stored
        while begin < len(names) and names[begin] in owner:
            begin += 1
        after = owner[names[begin - 1]] if begin > stored else None
        for name in names[begin:]:
            owner[name] = index
        branches.append(Branch(names, partial, stored, begin, after))
    return PastTree(branches, found)
