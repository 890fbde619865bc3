"""Beams read their own past from shared pages, however they fork, without unnecessary copies."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fusewire import kernels as k
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule


class Request:
    """What a request's beams must read, and its pages in the cache."""

    def __init__(self, beams: int, histories: list[list[int]], tables: list[list[int]]) -> None:
        self.beams, self.histories = beams, histories
        self.held = {page for table in tables for page in table}


class Forks(RuleBasedStateMachine):
    """Requests over one pool of pages, in which every position has its own number."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = np.full((4000, 1), -1)
        self.free: list[int] = []
        self.requests: list[Request] = []
        self.pages: list[k.BeamPages] = []
        self.numbers = 0
        self.read_only: set[int] = set()

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count, "the pool of this test is too small"
        return taken

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @initialize(page_size=st.sampled_from([1, 2, 4, 16]), data=st.data())
    def begin(self, page_size: int, data: st.DataObject) -> None:
        self.page_size = page_size
        self.cache = np.full((4000, page_size), -1)
        self.free = data.draw(st.permutations(range(40))) + list(range(40, 4000))
        for _ in range(data.draw(st.integers(1, 3))):
            beams, length = data.draw(st.integers(1, 7)), data.draw(st.integers(0, 3 * page_size))
            running = data.draw(st.integers(1, beams))  # more than one: a search that continues
            whole = length // page_size
            common = data.draw(st.integers(0, whole))
            shared, history = self.take(common), [self.number() for _ in range(length)]
            tables, histories = [], []
            for _ in range(running):
                own = history[: common * page_size]
                own += [self.number() for _ in range(length - len(own))]
                tables.append(shared + self.take(-(-length // page_size) - common))
                self.read_only |= set(tables[-1][:whole])
                histories.append(own)
                for position, number in enumerate(own):
                    page = tables[-1][position // page_size]
                    self.cache[page, position % page_size] = number
            self.requests.append(Request(beams, histories, tables))
            self.pages.append(
                k.BeamPages(beams=beams, page_size=page_size, tables=tables, length=length)
            )

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        offsets, parents = [0], []
        for request in self.requests:
            children = data.draw(
                st.lists(
                    st.integers(0, len(request.histories) - 1), min_size=1, max_size=request.beams
                )
            )
            if data.draw(st.integers(0, 9)) == 0:
                children = []  # not part of this step
            parents += children
            offsets.append(len(parents))
        offsets, parents = np.array(offsets, np.int32), np.array(parents, np.int32)
        wanted = k.wanted_pages(self.pages, offsets)
        fresh = self.take(int(wanted.sum()))
        known = k.give_pages(self.pages, offsets, np.array(fresh, np.int32))
        forks = k.fork_pages(self.pages, offsets, parents)
        table = k.beam_tables(self.pages, offsets)
        self.expect_known(known, table, offsets)
        self.expect_copies(forks, offsets, parents)
        self.cache[forks.destinations] = self.cache[forks.sources]
        self.read(table, offsets, parents, iter(fresh), wanted)
        released = set(forks.released.tolist())
        assert len(released) == len(forks.released)
        for request in self.requests:
            gone = request.held & released
            request.held -= gone
            released -= gone
            self.free += sorted(gone - self.read_only)  # other requests may own these
        assert not released

    def expect_known(self, known: np.ndarray, table: np.ndarray, offsets: np.ndarray) -> None:
        """Checks the known pages: those that rows write to, where they do not begin a page, before
        they get the pages of their parents."""
        for i, request in enumerate(self.requests):
            place, begins = divmod(len(request.histories[0]), self.page_size)
            own = slice(*offsets[i : i + 2].tolist())
            for page, row in zip(known[own], table[own], strict=True):
                assert page == (-1 if begins else row[place])

    def expect_copies(self, forks, offsets: np.ndarray, parents: np.ndarray) -> None:
        copies = 0
        for i, request in enumerate(self.requests):
            children = parents[offsets[i] : offsets[i + 1]]
            if len(children) and len(request.histories[0]) % self.page_size:
                copies += len(children) - len(set(children))
        assert len(forks.sources) == len(forks.destinations) == copies
        assert len(set(forks.destinations)) == copies
        assert not set(forks.sources) & set(forks.destinations)
        assert not self.read_only & set(forks.destinations)

    def read(self, block_table, offsets, parents, fresh, wanted) -> None:
        written: set[int] = set()
        for i, request in enumerate(self.requests):
            request.held |= {next(fresh) for _ in range(wanted[i])}
            children = parents[offsets[i] : offsets[i + 1]]
            if not len(children):
                continue
            length = len(request.histories[0])
            histories = []
            for row, parent in zip(range(offsets[i], offsets[i + 1]), children, strict=True):
                table = block_table[row]
                own = request.histories[parent] + [self.number()]
                page = int(table[length // self.page_size])
                assert page in request.held - self.read_only - written
                written.add(page)
                self.cache[page, length % self.page_size] = own[-1]
                histories.append(own)
            request.histories = histories
            assert self.pages[i].length == length + 1
        for i, request in enumerate(self.requests):
            for row in range(offsets[i], offsets[i + 1]):
                history = request.histories[row - offsets[i]]
                pages = block_table[row][: -(-len(history) // self.page_size)]
                assert self.cache[pages].reshape(-1)[: len(history)].tolist() == history

    @invariant()
    def holds_what_it_was_given(self) -> None:
        for request, pages in zip(self.requests, self.pages, strict=True):
            assert set(pages.pages.tolist()) == request.held

    @invariant()
    def holds_no_more_than_it_reads_and_a_page_for_every_beam(self) -> None:
        for request in self.requests:
            spans = {
                tuple(history[: (i + 1) * self.page_size])
                for history in request.histories
                for i in range(len(history) // self.page_size)
            }
            assert len(request.held) <= len(spans) + 2 * request.beams


TestForks = Forks.TestCase
TestForks.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beams": 0}, "got 0 beams, pages of 4 and length 6"),
        ({"tables": []}, "tables: got 0, wanted 1 to 2"),
        ({"tables": [[1, 2]] * 3}, "tables: got 3, wanted 1 to 2"),
        ({"tables": [[1]]}, "got one of 1 pages for 6 positions, wanted 2"),
        ({"tables": [[1, 2], [1, 2]]}, "got page 2 at the end of two"),
    ],
)
def test_tables_are_checked(given: dict, message: str):
    whole = {"beams": 2, "page_size": 4, "tables": [[1, 2]], "length": 6, **given}
    with pytest.raises(k.Error, match=re.escape(message)):
        k.BeamPages(**whole)


@pytest.mark.parametrize(
    ("offsets", "parents", "fresh", "message"),
    [
        ([0, 2], [0, 1], [9], "parents[1]: got 1, wanted 0 to 0"),
        ([0, 3], [0, 0, 0], [9], "got 3 children, wanted 1 to 2"),
        ([0, 2], [0, 0], [], "fresh: got 0 pages, wanted 1"),
        ([0, 2], [0, 0], [9, 10], "fresh: got 2 pages, wanted 1"),
        ([0, 1], [0, 0], [9], "offsets: got"),
        ([0, 1, 2], [0, 0], [9], "offsets: got"),
    ],
)
def test_forks_are_checked(offsets: list, parents: list, fresh: list, message: str):
    pages = k.BeamPages(beams=2, page_size=4, tables=[[1, 2]], length=6)

    def fork() -> None:
        k.give_pages([pages], np.int32(offsets), np.int32(fresh))
        k.fork_pages([pages], np.int32(offsets), np.int32(parents))

    with pytest.raises(k.Error, match=re.escape(message)):
        fork()
    both = np.int32([0, 2])
    (wanted,) = k.wanted_pages([pages], both)
    k.give_pages([pages], both, np.int32([9][:wanted]))
    forks = k.fork_pages([pages], both, np.int32([0, 0]))
    assert k.beam_tables([pages], both).tolist() == [[1, 2], [1, 9]]
    with pytest.raises(k.Error, match="offsets: got 3 rows of request 0, wanted at most 2, its"):
        k.beam_tables([pages], np.int32([0, 3]))
    assert (forks.sources.tolist(), forks.destinations.tolist()) == ([2], [9])
