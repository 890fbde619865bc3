"""The steps of generation: examples, then any calls in any order against a model of the memory."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence, State
from fusewire.engine.generation_step import Chunk, Step
from fusewire.engine.kv_cache import KvCache, Source
from fusewire.engine.sequence_pages import SequencePages
from fusewire.errors import ConfigurationError, InvalidInput
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.paged_memory import PagedMemory


class Engine:
    """The scheduler with a memory behind it and a model of two tokens; checks every step."""

    def __init__(
        self,
        pages: int = 100,
        page_size: int = 4,
        max_batch_tokens: int = 64,
        max_sequences: int = 8,
        prefix_caching: bool = True,
        looks_ahead: bool = False,
    ) -> None:
        """`looks_ahead`: plans the next step before it samples where the scheduler can."""
        self.looks_ahead = looks_ahead
        self.ahead: Step | None = None
        self.cache = KvCache(pages, page_size, prefix_caching)
        self.scheduler = GenerationScheduler(self.cache, max_batch_tokens, max_sequences)
        self.memory = PagedMemory(pages, page_size)
        self.budget = max_batch_tokens
        self.slots = max_sequences
        self.now = 0.0
        self.known: list[GenerationSequence] = []  # in the order in which they came

    def add(self, prompt: list[int], new_tokens: int = 4, **wishes) -> GenerationSequence:
        sequence = GenerationSequence(prompt[:], len(prompt) + new_tokens, **wishes)
        self.scheduler.add(sequence)
        self.known.append(sequence)
        return sequence

    def those(self, state: State) -> list[GenerationSequence]:
        return [sequence for sequence in self.known if sequence.state is state]

    def step(self) -> Step:
        """One turn of the engine's loop."""
        self.now += 1
        if self.ahead is not None:
            step, self.ahead = self.ahead, None
            self.compute(step)
            return step
        running, waiting = self.those(State.RUNNING), self.those(State.WAITING)
        single = [sequence for sequence in running if sequence.left == 1]
        returning = [sequence for sequence in waiting if sequence.started]
        step = self.scheduler.plan(self.now)
        self._check(step, running, waiting, single, returning)
        self.compute(step)
        return step

    def compute(self, step: Step) -> None:
        self.memory.copy_pages(step.copies)
        everyone = [s.pages for s in self.known if s.pages is not None]
        for source in step.sources:
            if source.readers:  # else cancelled after it was planned
                self.memory.encode(source, everyone)
        self.store([chunk for chunk in step.chunks if chunk.sequence.pages], everyone)
        forked = self.scheduler.done(step)
        for sequence, forks in forked:
            assert sequence.left == 0
            self.known += forks
        if self.looks_ahead and not forked:
            running, waiting = self.those(State.RUNNING), self.those(State.WAITING)
            self.ahead = self.scheduler.plan_ahead(step, self.now)
            if self.ahead is not None:
                self._check_ahead(self.ahead, running, waiting)
        for sequence in self.those(State.RUNNING):
            if sequence.returning:
                continue
            if sequence.rows is None:  # else its beams are checked
                self.memory.check(sequence.pages, sequence.token_ids)
            assert sequence.stored == sequence.pages.length
            if sequence.left == 0:
                self.sample(sequence)
        if not self.scheduler.running:
            self.ahead = None

    def store(self, chunks: list[Chunk], everyone: list[SequencePages]) -> None:
        """Of sequences that were not cancelled after they were planned."""
        for sequence, first, tokens in chunks:
            self.memory.write(sequence.pages, sequence.token_ids, first, tokens, everyone)

    @staticmethod
    def timed(sequence: GenerationSequence, returning: set[GenerationSequence]) -> bool:
        return sequence in returning or sequence.deadline is not None

    def turn(self, sequence: GenerationSequence, returning: set[GenerationSequence]) -> tuple:
        """In which order those wait that are timed, or of one tenant."""
        due = -inf if sequence in returning else sequence.deadline or inf
        return sequence.priority, due, sequence.rank

    def sample(self, sequence: GenerationSequence) -> None:
        sequence.token_ids.append(hash((*sequence.token_ids, sequence.rank[2])) % 2)
        if len(sequence.token_ids) == sequence.most_tokens:
            self.scheduler.finish(sequence)

    def drain(self) -> int:
        """Steps until all are finished, for which each may take its tokens twice."""
        # And its source as often as its pages.
        most = sum(2 * (s.most_tokens + 1) * s.continuations for s in self.known) + 1
        for steps in range(most):
            if not self.scheduler.running + self.scheduler.waiting:
                assert self.cache.used == self.cache.live_tokens == 0
                return steps
            self.step()
        raise AssertionError(f"still busy after {most} steps")

    def _check(self, step, running, waiting, single, returning):
        chunks = {sequence: tokens for sequence, _, tokens in step.chunks}
        assert len(chunks) == len(step.chunks) <= self.slots
        assert step.tokens <= self.budget
        encoded = sum(len(sequence.source) for sequence in step.encodes)
        assert step.tokens == encoded + sum(chunks.values())
        assert all(tokens >= 1 for tokens in chunks.values())
        assert all(first == sequence.stored for sequence, first, _ in step.chunks)

        for sequence in waiting:
            late = sequence.deadline is not None and sequence.deadline <= self.now
            assert (sequence in step.expired) == (late and not sequence.started)
        assert all(sequence.state is State.FINISHED for sequence in step.expired)

        stayed = [sequence for sequence in running if sequence not in step.preempted]
        for sequence in step.preempted:
            assert sequence.state is State.WAITING
            assert sequence.stored == 0
            assert all(other.rank < sequence.rank for other in stayed)
        assert bool(stayed) == bool(running)

        for sequence in single:
            assert sequence in step.preempted or chunks[sequence] == 1
        prompts = sorted((s for s in stayed if s not in single), key=lambda s: s.rank)
        admitted = [s for s in self.those(State.RUNNING) if s not in running]
        short = False  # somebody got less than they could have used: nothing is left for the next
        for sequence in prompts + [s for s, _, _ in step.prompts if s in admitted]:
            assert not short or sequence not in chunks
            short |= chunks.get(sequence, 0) < sequence.left
        still = self.those(State.WAITING)
        ahead = {s for s in waiting if s in returning} | {*step.preempted}
        for first, other in product(admitted, still):
            if self.timed(first, ahead) or self.timed(other, ahead) or first.tenant == other.tenant:
                assert self.turn(first, ahead) < self.turn(other, ahead)
        assert step.chunks or step.encodes or not self.those(State.RUNNING) + still
        # Sources are encoded when their sequences begin, unless they are there: then, or never.
        assert set(step.encodes) <= set(admitted)
        assert step.sources == [sequence.pages.source for sequence in step.encodes]
        for sequence in self.those(State.RUNNING):
            source = sequence.pages.source
            assert (source is None) == (sequence.source is None)
            assert source is None or source.stored != (source in step.sources)

    def _check_ahead(self, step, running, waiting):
        """All that run go on, with tokens that are yet to be sampled or with their prompts; plain
        ones that wait may begin, in order."""
        chunks = {sequence: tokens for sequence, _, tokens in step.chunks}
        assert len(chunks) == len(step.chunks) <= self.slots
        assert step.tokens == sum(chunks.values()) <= self.budget
        assert all(first == sequence.stored for sequence, first, _ in step.chunks)
        assert step.copies == step.preempted == step.encodes == step.groups == []
        decodes = step.decodes.rows.sequences
        ready = [sequence for sequence in running if sequence.left == 0]
        done = {sequence for sequence in ready if missing(sequence) == 1}
        assert {*decodes} == {*ready} - done
        for sequence, first, tokens in step.prompts:
            assert sequence.plain
            assert 1 <= tokens <= sequence.left
            assert first + tokens <= len(sequence.pages.table) * self.cache.page_size
        begun = [sequence for sequence in self.those(State.RUNNING) if sequence not in running]
        assert set(begun) <= chunks.keys()
        assert all(sequence in waiting for sequence in begun)
        running_on = [sequence for sequence in self.those(State.RUNNING) if sequence not in done]
        assert sum(sequence.continuations for sequence in running_on) <= self.slots
        rest = sorted((s for s in running if s.left), key=lambda s: s.rank)
        short = False
        for sequence in rest + [s for s, _, _ in step.prompts if s in begun]:
            assert not short or sequence not in chunks
            short |= chunks.get(sequence, 0) < sequence.left


def missing(sequence: GenerationSequence) -> int:
    """Tokens that are still to be generated."""
    return sequence.most_tokens - len(sequence.token_ids)


def test_sequences_join_and_leave_at_every_step():
    engine = Engine()
    first = engine.add([1, 2, 3], new_tokens=2)
    assert [tuple(chunk) for chunk in engine.step().chunks] == [(first, 0, 3)]
    second = engine.add([4, 5], new_tokens=3)
    assert [tuple(chunk) for chunk in engine.step().chunks] == [(first, 3, 1), (second, 0, 2)]
    assert first.state is State.FINISHED
    assert [tuple(chunk) for chunk in engine.step().chunks] == [(second, 2, 1)]


def test_a_long_prompt_comes_in_chunks_and_stalls_nobody():
    engine = Engine(max_batch_tokens=8)
    short = engine.add([1], new_tokens=9)
    engine.step()
    long = engine.add([2] * 12)
    late = engine.add([3] * 12)
    plans = [[chunk.tokens for chunk in engine.step().chunks] for _ in range(4)]
    assert plans == [[1, 7], [1, 5, 2], [1, 1, 6], [1, 1, 4]]
    assert [missing(sequence) for sequence in (short, long, late)] == [4, 1, 3]


def test_lower_priority_numbers_run_first_and_equals_in_order():
    engine = Engine(max_sequences=1)
    order = [engine.add([n], 1, priority=priority) for n, priority in enumerate((1, 0, 1, -2))]
    ran = [engine.step().chunks[0].sequence for _ in order]
    assert ran == [order[3], order[1], order[0], order[2]]


def test_nobody_overtakes_the_first_in_the_queue():
    engine = Engine(pages=4, page_size=4)
    running = engine.add([1] * 8, new_tokens=4)
    engine.step()
    long, short = engine.add([2] * 12), engine.add([3])
    while running.state is State.RUNNING:
        assert [chunk.sequence for chunk in engine.step().chunks] == [running]
    assert [chunk.sequence for chunk in engine.step().chunks] == [long]
    assert short.state is State.WAITING


def test_one_refused_for_pages_is_looked_up_again_when_there_may_be_enough(monkeypatch):
    engine = Engine(pages=16, page_size=4)
    asked = []
    admit = engine.cache.admit
    monkeypatch.setattr(engine.cache, "admit", lambda *a, **b: asked.append(1) or admit(*a, **b))
    running = engine.add([3] * 32, new_tokens=20)
    engine.step()
    waiting = engine.add([1, 2] * 16)  # 8 pages, of 8 that are left, 2 of which are for the two
    for _ in range(10):
        engine.step()
    assert len(asked) == 2
    engine.scheduler.finish(running)
    engine.step()
    assert waiting.state is State.RUNNING


def test_one_refused_for_pages_finds_a_prompt_that_was_stored_meanwhile():
    engine = Engine(pages=12, page_size=4, max_batch_tokens=20)
    engine.add([1, 2] * 16, new_tokens=16)
    engine.step()
    waiting = engine.add([1, 2] * 16 + [3], new_tokens=2)
    engine.step()  # it finds 5 pages, wants 4 more, and 4 are left
    assert waiting.state is State.WAITING
    [_, chunk] = engine.step().chunks
    assert (chunk.sequence, chunk.first, chunk.tokens) == (waiting, 32, 1)


def test_one_refused_for_pages_holds_up_nobody_that_ranks_before_it():
    engine = Engine(pages=12, page_size=4)
    engine.add([1] * 20, new_tokens=20)
    engine.step()
    long = engine.add([2] * 24)
    engine.step()
    short = engine.add([3], priority=-1)
    assert [chunk.sequence for chunk in engine.step().chunks][1:] == [short]
    assert long.state is State.WAITING


def test_pages_are_left_for_those_that_run():
    engine = Engine(pages=8, page_size=4)
    engine.add([1] * 8, new_tokens=8)
    engine.add([2] * 8, new_tokens=8)
    engine.step()
    waiting = engine.add([3] * 4, new_tokens=8)
    engine.step()  # there is a page for it, which one of the others would miss soon
    assert (engine.cache.available, waiting.state) == (2, State.WAITING)
    engine.drain()
    assert engine.scheduler.preemptions == 0


def test_the_last_to_come_gives_up_its_pages_and_is_computed_again():
    engine = Engine(pages=6, page_size=4, prefix_caching=False)
    first = engine.add([1] * 7, new_tokens=10)
    second = engine.add([2] * 7, new_tokens=10)
    steps = [engine.step() for _ in range(7)]
    assert [step.preempted for step in steps] == [[]] * 6 + [[second]]
    assert (second.stored, missing(second), engine.scheduler.preemptions) == (0, 4, 1)
    engine.drain()
    assert [missing(sequence) for sequence in (first, second)] == [0, 0]


def test_what_was_pre_empted_finds_its_pages_again():
    engine = Engine(pages=6, page_size=4)
    first, second = engine.add([1] * 7, 10), engine.add([2] * 7, 10)
    while not engine.scheduler.preemptions:
        engine.step()
    engine.scheduler.finish(first)
    before = second.token_ids[:]
    [chunk] = engine.step().chunks
    assert chunk.sequence is second
    assert chunk.first == 8
    assert second.cached_tokens == 0  # only its own were found
    assert second.token_ids[:-1] == before


def test_an_equal_prompt_starts_where_the_other_is_stored():
    engine = Engine()
    engine.add([1, 2, 3, 4, 5])
    engine.step()
    [_, chunk] = [engine.add([1, 2, 3, 4, 6]), engine.step().chunks[-1]]
    assert (chunk.first, chunk.tokens) == (4, 1)


def test_continuations_share_the_prompt_and_go_their_own_ways():
    engine = Engine(page_size=4)
    sequence = engine.add([1, 2, 3, 4, 5, 6], continuations=3)
    assert [chunk.tokens for chunk in engine.step().chunks] == [6]
    family = engine.those(State.RUNNING)
    assert len(family) == 3
    assert len({tuple(one.pages.table) for one in family}) == 1
    step = engine.step()
    assert [chunk.sequence for chunk in step.chunks] == family
    assert [source for source, _ in step.copies] == [step.copies[0][0]] * 2
    assert engine.cache.used == 4
    assert sequence.continuations == 1
    engine.drain()
    assert [missing(one) for one in family] == [0, 0, 0]


def test_a_prompt_whose_last_token_comes_alone_is_forked_behind_it():
    engine = Engine(max_batch_tokens=8)
    sequence = engine.add([1, 2, 1] * 3, continuations=3)
    assert [chunk.tokens for chunk in engine.step().chunks] == [8]
    assert [chunk.tokens for chunk in engine.step().chunks] == [1]
    family = engine.those(State.RUNNING)
    assert len(family) == 3
    assert [chunk.sequence for chunk in engine.step().chunks] == family
    assert sequence.continuations == 1
    engine.drain()


def test_room_for_every_continuation_is_waited_for():
    engine = Engine(max_sequences=3)
    engine.add([1] * 4, new_tokens=2)
    engine.step()
    wide = engine.add([2] * 4, continuations=3)
    assert len(engine.step().chunks) == 1
    engine.step()
    assert wide.state is State.RUNNING
    assert engine.scheduler.running == 3


def test_a_running_sequence_forks_at_any_time():
    engine = Engine(max_sequences=2)
    sequence = engine.add([1] * 3)
    with pytest.raises(ValueError, match="got one waiting"):
        engine.scheduler.fork(sequence)
    engine.step()
    twin = engine.scheduler.fork(sequence)
    engine.known.append(twin)
    assert (twin.token_ids, twin.pages.table) == (sequence.token_ids, sequence.pages.table)
    assert twin.token_ids is not sequence.token_ids
    with pytest.raises(ValueError, match="2 of 2 slots"):
        engine.scheduler.fork(sequence)
    assert [chunk.sequence for chunk in engine.step().chunks] == [sequence, twin]
    engine.drain()


def test_a_source_is_encoded_whole_before_its_first_tokens():
    engine = Engine(pages=20, page_size=4, max_batch_tokens=12)
    first = engine.add([1], source=Source([5] * 9))
    step = engine.step()
    assert (step.encodes, step.tokens) == ([first], 10)
    assert [tuple(chunk) for chunk in step.chunks] == [(first, 0, 1)]
    assert (engine.cache.used, engine.cache.live_tokens) == (3 + 1, 9 + 1)
    step = engine.step()
    assert (step.encodes, [tuple(chunk) for chunk in step.chunks]) == ([], [(first, 1, 1)])
    engine.drain()


def test_a_source_that_fills_a_step_leaves_the_first_token_to_the_next():
    engine = Engine(pages=20, page_size=4, max_batch_tokens=12)
    sequence = engine.add([1], source=Source([5] * 12))
    step = engine.step()
    assert (step.encodes, step.chunks) == ([sequence], [])
    assert [tuple(chunk) for chunk in engine.step().chunks] == [(sequence, 0, 1)]
    engine.drain()


def test_a_source_waits_for_a_step_with_room_for_all_of_it():
    engine = Engine(max_batch_tokens=12)
    longs = [engine.add([1], new_tokens=3, source=Source([5] * n)) for n in (9, 11)]
    after = engine.add([1], new_tokens=3, source=Source([6]))
    encodes = [engine.step().encodes for _ in range(3)]
    assert encodes == [[longs[0]], [longs[1]], [after]]
    engine.drain()


def test_a_repeated_source_skips_the_encoder():
    engine = Engine(pages=20, page_size=4)
    first = engine.add([1], new_tokens=6, source=Source([5] * 9))
    engine.step()
    again = engine.add([1], new_tokens=6, source=Source([5] * 9))
    other = engine.add([1], new_tokens=6, source=Source([5] * 8))
    step = engine.step()
    assert step.encodes == [other]
    assert again.pages.source.table == first.pages.source.table
    assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 9, 0)
    assert engine.cache.prefix_hit_tokens == 9
    engine.drain()
    late = engine.add([1], source=Source([5] * 9))
    assert engine.step().encodes == []
    assert late.cached_tokens == 9


def test_equal_sources_of_one_step_are_stored_once():
    engine = Engine(pages=20, page_size=4)
    both = [engine.add([1], new_tokens=6, source=Source([5] * 9)) for _ in range(2)]
    step = engine.step()
    assert (step.encodes, step.tokens) == (both[:1], 9 + 2)
    assert both[0].pages.source is both[1].pages.source
    assert (engine.cache.used, engine.cache.live_tokens) == (3 + 2, 2 * (9 + 1))
    engine.drain()


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_who_shares_a_source_that_is_coming_does_not_need_who_brought_it(cancelled):
    engine = Engine(pages=20, page_size=4)
    sharing = [engine.add([1], new_tokens=6, source=Source([5] * 9)) for _ in range(3)]
    step = engine.scheduler.plan(1)
    for sequence in (sharing[cancelled], sharing[cancelled - 1]):
        engine.scheduler.finish(sequence)
    engine.compute(step)
    (left,) = engine.those(State.RUNNING)
    assert left.pages.source.stored
    assert (engine.cache.used, engine.cache.live_tokens) == (3 + 1, 9 + 1)
    engine.drain()


def test_a_source_that_nobody_wants_any_more_is_encoded_for_the_next():
    engine = Engine(pages=20, page_size=4)
    both = [engine.add([1], source=Source([5] * 9)) for _ in range(2)]
    engine.scheduler.plan(1)  # whose computation fails
    for sequence in both:
        engine.scheduler.finish(sequence)
    assert engine.cache.used == 0
    after = engine.add([1], source=Source([5] * 9))
    assert engine.step().encodes == [after]
    engine.drain()


def test_an_equal_source_needs_no_budget_of_its_own():
    engine = Engine(pages=20, page_size=4, max_batch_tokens=12)
    both = [engine.add([1], source=Source([5] * 9)) for _ in range(2)]
    assert [chunk.sequence for chunk in engine.step().chunks] == both
    engine.drain()


def test_without_prefix_caching_every_source_is_encoded():
    engine = Engine(prefix_caching=False)
    first, again = (engine.add([1], new_tokens=6, source=Source([5] * 9)) for _ in range(2))
    assert engine.step().encodes == [first, again]
    assert not set(first.pages.source.table) & set(again.pages.source.table)
    engine.drain()
    assert (engine.cache.free, engine.cache.cached) == (engine.cache.pages, 0)


def test_equal_prompts_of_different_sources_share_nothing():
    engine = Engine(page_size=2)
    prompt = [1, 2, 3, 4, 5]
    sequences = [engine.add(prompt, source=source) for source in (Source([5]), Source([6]), None)]
    engine.step()
    assert len({sequence.pages.table[0] for sequence in sequences}) == 3
    again = engine.add(prompt, source=Source([6]))
    assert engine.step().chunks[-1].first == again.cached_tokens - 1 == 4
    engine.drain()


def test_forks_share_the_source_until_the_last_ends():
    engine = Engine(pages=20, page_size=4, prefix_caching=False)
    first = engine.add([1], new_tokens=9, continuations=3, source=Source([5] * 9))
    engine.step()
    family = engine.those(State.RUNNING)
    assert len(family) == 3
    assert len({id(one.pages.source) for one in family}) == 1
    assert engine.cache.live_tokens == 3 * (9 + 1)
    for left in (2, 1):
        engine.scheduler.finish(engine.those(State.RUNNING)[0])
        assert engine.those(State.RUNNING)[0].pages.source.readers == left
        engine.step()
    assert first.pages is None
    engine.drain()


def test_one_pre_empted_is_encoded_again_unless_its_source_is_still_there():
    for prefix_caching in (True, False):
        engine = Engine(pages=7, page_size=4, prefix_caching=prefix_caching)
        first = engine.add([1], new_tokens=15, source=Source([5] * 4))
        second = engine.add([1], new_tokens=15, source=Source([6] * 4))
        encoded = []
        while not engine.scheduler.preemptions:
            encoded += engine.step().encodes
        assert encoded == [first, second]
        engine.scheduler.finish(first)
        step = engine.step()
        assert step.encodes == ([] if prefix_caching else [second])
        engine.drain()
        assert missing(second) == 0


def test_cancelling_frees_slot_and_pages_at_once():
    engine = Engine(max_sequences=1)
    running, waiting = engine.add([1] * 9), engine.add([2])
    engine.step()
    engine.scheduler.finish(running)
    assert (engine.cache.used, engine.scheduler.running) == (0, 0)
    engine.scheduler.finish(waiting)
    engine.scheduler.finish(waiting)
    assert engine.step().chunks == []


def test_what_is_cancelled_between_plan_and_done_stays_so():
    engine = Engine()
    sequence, other = engine.add([1] * 9), engine.add([2] * 3)
    step = engine.scheduler.plan(0.0)
    engine.scheduler.finish(sequence)
    engine.compute(step)
    assert (sequence.state, sequence.stored, other.stored) == (State.FINISHED, 0, 3)
    engine.drain()
    assert missing(other) == 0


def test_a_deadline_ends_the_wait_but_not_what_has_begun():
    engine = Engine(pages=6, page_size=4, max_sequences=2)
    begun = engine.add([1] * 7, 10, deadline=1.5)
    pre_empted = engine.add([2] * 7, 10, deadline=2.0)
    late, later = engine.add([3], deadline=2.0), engine.add([4], deadline=3.0)
    expired = [engine.step().expired for _ in range(7)]
    assert expired == [[], [late], [later], [], [], [], []]
    assert pre_empted.state is State.WAITING
    engine.drain()
    assert [missing(sequence) for sequence in (begun, pre_empted, late)] == [0, 0, 4]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (GenerationSequence([1] * 5, 13), r"max_tokens: got 13 .* at most 12"),
        (GenerationSequence([1] * 13, 5), r"max_tokens: got 13 .* at most 12"),
        (GenerationSequence([], 5), r"prompt: got no tokens, wanted at least one"),
        (GenerationSequence([1], 2, continuations=3), r"n: got 3, wanted 1 to 2"),
        (GenerationSequence([1], 2, continuations=0), r"n: got 0, wanted 1 to 2"),
        (GenerationSequence([1], 2, source=Source([1] * 9)), r"source: got 9 tokens, .* 1 to 8 "),
        (GenerationSequence([1], 2, source=Source([])), r"source: got 0 tokens, wanted 1 to 8 "),
        (
            GenerationSequence([1], 9, source=Source([1])),
            r"max_tokens: got 9 tokens .* beside the 1 of the source, wanted at most 12",
        ),
    ],
)
def test_what_can_never_run_is_refused_at_once(sequence, message):
    engine = Engine(pages=3, page_size=4, max_sequences=2, max_batch_tokens=8)
    with pytest.raises(InvalidInput, match=message):
        engine.scheduler.check(sequence)
    engine.scheduler.check(GenerationSequence([1] * 5, 12, continuations=2))
    engine.scheduler.check(GenerationSequence([1], 8, source=Source([1] * 4)))
    engine.scheduler.check(GenerationSequence([1], 4, source=Source([1] * 8)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_sequences": 0}, "max_sequences: got 0"),
        ({"max_batch_tokens": 7}, "max_batch_tokens: got 7, wanted at least 8"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        Engine(**wrong)


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=10)
SOURCES = st.lists(st.integers(0, 1), min_size=1, max_size=8)


class SchedulerMachine(RuleBasedStateMachine):
    """Any calls in any order, to two engines, which must always agree."""

    @initialize(
        pages=st.integers(3, 12),
        page_size=st.integers(1, 4),
        max_sequences=st.integers(1, 6),
        more_tokens=st.integers(0, 8),
        prefix_caching=st.booleans(),
        looks_ahead=st.booleans(),
    )
    def start(self, max_sequences, more_tokens, **wishes):
        self.engines = [
            Engine(
                max_sequences=max_sequences,
                max_batch_tokens=max_sequences + more_tokens,
                **wishes,
            )
            for _ in range(2)
        ]

    def place(self, data) -> int | None:
        known = len(self.engines[0].known)
        return data.draw(st.integers(0, known - 1)) if known else None

    @rule(
        prompts=st.lists(PROMPTS, min_size=1, max_size=4),
        new_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
        wait=st.sampled_from([None, None, None, 1, 5]),
        continuations=st.sampled_from([1, 1, 2, 3]),
        source=st.none() | SOURCES,
        tenant=st.sampled_from(["", "", "blue"]),
        cost_s=st.floats(0, 3),
    )
    def add(self, prompts, new_tokens, wait, continuations, source, **wishes):
        for engine, prompt in product(self.engines, prompts):
            size, pages = engine.cache.page_size, engine.cache.pages
            if source is not None:  # beside two pages at least
                source = source[: min(engine.budget, (pages - 2) * size)]
                pages -= -(-len(source) // size)
            room = pages * size
            wishes["deadline"] = None if wait is None else engine.now + wait
            wishes["continuations"] = min(continuations, engine.slots)
            wishes["source"] = None if source is None else Source(source)
            fitting = prompt[: room - 1]
            if engine.scheduler.waiting < 8:
                engine.add(fitting, min(new_tokens, room - len(fitting)), **wishes)

    @rule(times=st.integers(1, 5))
    def steps(self, times):
        for _ in range(times):
            self.step()

    def step(self):
        steps = [engine.step() for engine in self.engines]
        plans = [
            (
                [(c.sequence.rank, c.first, c.tokens, c.sequence.pages) for c in step.chunks],
                step.copies,
                [sequence.rank for sequence in step.encodes],
                [sequence.rank for sequence in step.preempted],
                [sequence.rank for sequence in step.expired],
            )
            for step in steps
        ]
        for plan in plans:
            plan[0][:] = [(*chunk[:3], chunk[3] and chunk[3].table[:]) for chunk in plan[0]]
        assert plans[0] == plans[1]

    def compute_what_is_ahead(self):
        while self.engines[0].ahead is not None:
            looks_ahead = self.engines[0].looks_ahead
            for engine in self.engines:
                engine.looks_ahead = False
            self.step()
            for engine in self.engines:
                engine.looks_ahead = looks_ahead

    @rule(data=st.data())
    def cancel(self, data):
        place = self.place(data)
        if place is not None:
            for engine in self.engines:
                engine.scheduler.finish(engine.known[place])
                assert engine.known[place].pages is None

    @rule(data=st.data())
    def cancel_after_the_plan(self, data):
        place = self.place(data)
        self.compute_what_is_ahead()
        for engine in self.engines:
            step = engine.scheduler.plan(engine.now)
            if place is not None:
                engine.scheduler.finish(engine.known[place])
            engine.compute(step)

    @rule(data=st.data())
    def fork(self, data):
        place = self.place(data)
        if place is None:
            return
        self.compute_what_is_ahead()
        for engine in self.engines:
            sequence = engine.known[place]
            widths = sum(one.continuations for one in engine.those(State.RUNNING))
            can = sequence.state is State.RUNNING and sequence.left == 1 and sequence.stored
            if can and widths < engine.slots:
                engine.known.append(engine.scheduler.fork(sequence))

    @invariant()
    def figures_agree(self):
        for engine in getattr(self, "engines", ()):
            running = engine.those(State.RUNNING)
            assert engine.scheduler.running == len(running)
            assert engine.scheduler.waiting == len(engine.those(State.WAITING))
            assert all(sequence.stored == sequence.pages.length for sequence in running)
            sources = [sequence.pages.source for sequence in running if sequence.source]
            tokens = sum(source.tokens for source in sources)
            assert engine.cache.live_tokens == tokens + sum(each.stored for each in running)
            tables = [each.pages.table for each in running] + [each.table for each in sources]
            assert engine.cache.used == len({page for table in tables for page in table})
            others = [one for one in engine.known if one not in running]
            assert all(one.pages is None and one.stored == 0 for one in others)

    def teardown(self):
        for engine in getattr(self, "engines", ()):
            engine.drain()
            asked = [one for one in engine.known if one.state is not State.FINISHED]
            assert asked == []


TestAnyCalls = SchedulerMachine.TestCase
TestAnyCalls.settings = settings(max_examples=200, stateful_step_count=30)
