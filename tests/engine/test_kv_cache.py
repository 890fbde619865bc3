"""The pages of the cache: examples, then any calls in any order against a model of the memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from fusewire.engine.kv_cache import KvCache, OutOfPages, Source
from fusewire.engine.sequence_pages import SequencePages
from fusewire.errors import ConfigurationError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.paged_memory import PagedMemory

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def begin(cache: KvCache, token_ids: list[int]) -> SequencePages:
    return cache.admit(token_ids, cache.names())


def stored(cache: KvCache, token_ids: list[int]) -> SequencePages:
    """A sequence with all its tokens in the cache."""
    pages = begin(cache, token_ids)
    cache.reserve(pages, len(token_ids))
    cache.advance(pages, token_ids)
    return pages


def figures(cache: KvCache) -> tuple[int, ...]:
    return (cache.free, cache.used, cache.cached, cache.prefix_hit_tokens)


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_what_is_found_is_the_common_start_in_whole_pages(first, second, page_size):
    cache = KvCache(100, page_size)
    earlier = stored(cache, first)
    later = begin(cache, second)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    hit = min(common, len(second) - 1) // page_size
    assert later.length == hit * page_size == cache.prefix_hit_tokens
    assert later.table == earlier.table[:hit]


def test_the_last_token_is_left_to_compute():
    cache = KvCache(4, 2)
    stored(cache, [1, 2, 3, 4])
    assert begin(cache, [1, 2, 3, 4]).length == 2
    assert begin(cache, [1, 2, 3, 4, 5]).length == 4


def test_pages_of_equal_content_become_one():
    cache = KvCache(8, 2)
    prompt = [1, 2, 3, 4, 5]
    both = [begin(cache, prompt), begin(cache, prompt)]  # neither finds the other's
    for pages in both:
        cache.reserve(pages, 5)
    assert cache.used == 6
    for pages in both:
        cache.advance(pages, prompt)
    assert both[0].table[:2] == both[1].table[:2]
    assert both[0].table[2] != both[1].table[2]
    assert cache.used == 4


def test_a_prompt_advances_in_parts():
    cache = KvCache(4, 2)
    prompt = [1, 2, 3, 4, 5]
    pages = begin(cache, prompt)
    cache.reserve(pages, 3)
    cache.advance(pages, prompt, 3)
    assert begin(cache, prompt).length == 2
    cache.reserve(pages, 5)
    cache.advance(pages, prompt, 5)
    assert begin(cache, prompt).length == 4


def test_pages_are_given_up_last_used_first_and_ends_before_starts():
    cache = KvCache(4, 2)
    older, newer = stored(cache, [1, 1, 1, 1]), stored(cache, [2, 2, 2, 2])
    cache.release(older)
    cache.release(newer)
    assert figures(cache)[:3] == (0, 0, 4)
    assert begin(cache, [1, 1, 9]).length == 2  # used again: the newer ones are next
    stored(cache, [3, 3])
    assert cache.evictions == 1
    assert begin(cache, [1, 1, 1, 1, 9]).length == 2
    assert begin(cache, [2, 2, 2, 2, 9]).length == 4
    with pytest.raises(OutOfPages):
        stored(cache, [4, 4])
    assert cache.evictions == 1


def test_without_prefix_caching_nothing_is_found_and_released_pages_are_free():
    cache = KvCache(4, 2, prefix_caching=False)
    pages = stored(cache, [1, 2, 3, 4])
    assert begin(cache, [1, 2, 3, 4, 5]).length == 0
    cache.release(pages)
    assert figures(cache) == (4, 0, 0, 0)


def test_a_fork_copies_the_begun_page_and_the_last_owner_does_not():
    cache = KvCache(8, 4)
    first = stored(cache, [1, 2, 3, 4, 5])
    forks = [cache.fork(first) for _ in range(2)]
    assert cache.used == 2
    begun = first.table[1]
    [copy] = cache.reserve(first, 6)
    assert copy == (begun, first.table[1])
    assert [from_ for from_, _ in cache.reserve(forks[0], 6)] == [begun]
    assert cache.reserve(forks[1], 6) == []
    assert forks[1].table[1] == begun
    assert cache.used == 4


def test_a_fork_at_the_end_of_a_page_copies_nothing():
    cache = KvCache(8, 4)
    first = stored(cache, [1, 2, 3, 4])
    cache.reserve(first, 6)
    fork = cache.fork(first)
    assert fork.table == first.table[:1]
    assert cache.reserve(fork, 5) == cache.reserve(first, 5) == []
    assert fork.table[1] != first.table[1]


def test_too_few_pages_change_nothing():
    cache = KvCache(3, 2)
    first = stored(cache, [1, 2, 3])
    fork = cache.fork(first)
    before, table = figures(cache), fork.table[:]
    with pytest.raises(OutOfPages, match=r"got 1 available, wanted 2;"):
        cache.reserve(fork, 5)  # a copy and a new page
    with pytest.raises(OutOfPages):
        cache.admit([1, 2, 9], cache.names(), room=3, spare=1)
    assert (figures(cache), fork.table) == (before, table)
    assert len(cache.admit([1, 2, 9], cache.names(), room=3).table) == 2


def test_found_pages_that_nobody_uses_count_as_taken():
    cache = KvCache(3, 2)
    cache.release(stored(cache, [1, 2, 3, 4]))
    with pytest.raises(OutOfPages):
        cache.admit([1, 2, 3, 4, 5], cache.names(), room=5, spare=1)
    assert cache.admit([1, 2, 3, 4, 5], cache.names(), room=5).length == 4
    assert cache.used == 3


def test_beams_that_come_back_take_no_page_of_their_source():
    """Where it is the one that was released longest ago, but for those of the beams."""
    cache = KvCache(10, 2)
    source, prompt = Source([7, 7, 7, 7]), [1, 2]
    names = cache.names(source)
    search = cache.admit(prompt, names, room=2, source=source)
    cache.store_source(search.source)
    cache.advance(search, prompt)
    shared = cache.beams.begin(search)
    cache.beams.reserve([search], [4])
    own = cache.beams.take([search], [4])
    pasts = [[*prompt, 3, 4, 5], [*prompt, 6, 7, 8]]
    cache.beams.suspend(search, pasts, [[*shared, *own[:2]], [*shared, *own[2:]]])
    cache.release(search)
    cache.release(stored(cache, [9] * 2 * cache.free))
    assert figures(cache)[:3] == (0, 0, 10)
    search, each, _ = cache.readmit(len(prompt), pasts, names, beams=2, source=source)
    assert search.source.stored
    of_source = set(search.source.table)
    of_beams = {page for pages in each for page in pages.table}
    assert (len(of_source), len(of_beams)) == (2, 5)
    assert of_source.isdisjoint(of_beams)
    cache.release(search)
    assert cache.used == cache.reserved == cache.live_tokens == 0


def test_searches_that_fork_together_take_their_own_pages_and_no_more_than_reserved():
    cache = KvCache(10, 2)
    searches = [stored(cache, [token]) for token in (1, 2)]
    cache.beams.reserve(searches, [2, 3])
    with pytest.raises(ValueError, match="got 4, wanted at most 3, reserved"):
        cache.beams.take(searches, [2, 4])
    assert (cache.used, cache.reserved) == (2, 5)
    taken = cache.beams.take(searches, [1, 3])
    assert [each.beam_pages for each in searches] == [{taken[0]}, {*taken[1:]}]
    assert (len(taken), cache.used, cache.reserved) == (4, 6, 0)


def test_a_source_is_named_only_where_others_may_find_it(monkeypatch):
    asked: list[Source] = []
    monkeypatch.setattr(Source, "name", property(lambda source: asked.append(source) or b"name"))
    for caching in (False, True):
        source, cache = Source([7, 7, 7]), KvCache(10, 2, caching)
        pages = cache.admit([1, 2], cache.names(source), room=2, source=source)
        cache.store_source(pages.source)
        cache.advance(pages, [1, 2])
        cache.release(pages)
        assert bool(asked) == caching


def test_tokens_without_room_are_not_stored():
    cache = KvCache(4, 2)
    pages = stored(cache, [1, 2])
    with pytest.raises(ValueError, match="got 3, wanted 2 to 2"):
        cache.advance(pages, [1, 2, 3])
    with pytest.raises(ValueError, match="got 1, wanted 2"):
        cache.advance(pages, [1])


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0)])
def test_a_cache_has_pages_and_pages_have_places(sizes):
    with pytest.raises(ConfigurationError, match="wanted at least 1"):
        KvCache(*sizes)


@dataclass(eq=False)
class Alive:
    """A sequence in use: the first pages.length of its tokens are stored."""

    pages: SequencePages
    token_ids: list[int]


class CacheMachine(RuleBasedStateMachine):
    """Any calls in any order."""

    @initialize(pages=st.integers(1, 10), page_size=st.integers(1, 4), prefix_caching=st.booleans())
    def start(self, pages, page_size, prefix_caching):
        self.cache = KvCache(pages, page_size, prefix_caching)
        self.memory = PagedMemory(pages, page_size)
        self.alive: list[Alive] = []
        self.ever: set[tuple[int, ...]] = set()  # full pages stored at any time

    @rule(prompt=TOKENS)
    def begin(self, prompt):
        pages = begin(self.cache, prompt)
        assert pages.length < len(prompt)
        self.alive.append(Alive(pages, prompt[:]))

    @rule(data=st.data(), more=TOKENS)
    def write(self, data, more):
        """The next tokens of the prompt, or `more` after it."""
        if not self.alive:
            return
        one = data.draw(st.sampled_from(self.alive))
        first = one.pages.length
        if first == len(one.token_ids):
            one.token_ids += more
        length = data.draw(st.integers(first, len(one.token_ids)))
        before, table = figures(self.cache), one.pages.table[:]
        wanted = self.cache.wanted(one.pages, length)
        if wanted > self.cache.available:
            with pytest.raises(OutOfPages):
                self.cache.reserve(one.pages, length)
            assert (figures(self.cache), one.pages.table) == (before, table)
            return
        available = self.cache.available
        self.memory.copy_pages(self.cache.reserve(one.pages, length))
        assert available - self.cache.available == wanted
        if length > first:
            everyone = [other.pages for other in self.alive]
            ids = one.token_ids
            self.memory.write(one.pages, ids, first, length - first, everyone)
        self.cache.advance(one.pages, one.token_ids, length)
        size = self.cache.page_size
        ends = range(size, length + 1, size)
        self.ever |= {tuple(one.token_ids[:end]) for end in ends}

    @rule(data=st.data())
    def fork(self, data):
        if self.alive:
            one = data.draw(st.sampled_from(self.alive))
            pages = self.cache.fork(one.pages)
            self.alive.append(Alive(pages, one.token_ids[:]))

    @rule(data=st.data())
    def release(self, data):
        if self.alive:
            place = data.draw(st.integers(0, len(self.alive) - 1))
            self.cache.release(self.alive.pop(place).pages)

    @invariant()
    def every_page_is_accounted_for(self):
        tables = [one.pages.table for one in self.alive]
        assert all(len(set(table)) == len(table) for table in tables)
        assert self.cache.used == len({page for table in tables for page in table})
        assert self.cache.free + self.cache.used + self.cache.cached == self.cache.pages
        assert self.cache.live_tokens == sum(one.pages.length for one in self.alive)
        assert self.cache.prefix_caching or self.cache.cached == 0

    @invariant()
    def everyone_reads_their_own_tokens(self):
        for one in self.alive:
            self.memory.check(one.pages, one.token_ids)

    @invariant()
    def whole_starts_are_found(self):
        """A page that is found has its predecessors found too; nothing else is cached."""
        found = 0
        for ids in self.ever:
            names = self.cache.names()
            name = names.name(len(ids) // self.cache.page_size - 1, ids)
            if self.cache._pool.find(name) is not None:
                probe = self.cache._find((*ids, 0), names, len(ids))
                assert len(probe) * self.cache.page_size == len(ids)
                found += 1
        assert found >= self.cache.cached  # every cached page is one of these

    def teardown(self):
        if hasattr(self, "cache"):
            for one in self.alive:
                self.cache.release(one.pages)
            assert self.cache.used == self.cache.live_tokens == 0


TestAnyCalls = CacheMachine.TestCase
TestAnyCalls.settings = settings(max_examples=150, stateful_step_count=40)
