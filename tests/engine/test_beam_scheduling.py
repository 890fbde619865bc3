"""Groups of beams among other sequences: never short of a page, preempted as a whole and back where
they were, and whatever happens, their pages hold what their beams wrote and are free at the end."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from fusewire import kernels
from fusewire.engine.beam_pasts import pasts_of
from fusewire.engine.generation_sequence import BeamRows, GenerationSequence, State
from fusewire.engine.generation_step import Chunk, Step
from fusewire.engine.kv_cache import Source
from fusewire.engine.sequence_pages import SequencePages
from fusewire.errors import InvalidInput
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.test_generation_scheduler import PROMPTS, SOURCES, Engine, missing


class Beams:
    """A search that forks at random."""

    def __init__(self, sequence: GenerationSequence) -> None:
        self.prompt = len(sequence.token_ids)
        self.histories: list[tuple[int, ...]] = [tuple(sequence.token_ids)]
        self.random = Random(sequence.rank[1])
        self.pages: kernels.BeamPages | None = None

    def generated(self) -> list[tuple[int, ...]]:
        return [history[self.prompt :] for history in self.histories]


class BeamEngine(Engine):
    """With groups, whose beams are forked as the engine's are."""

    def __init__(self, **wishes) -> None:
        super().__init__(**wishes)
        self.beams: dict[GenerationSequence, Beams] = {}
        self.most_taken = 0

    def add(self, prompt: list[int], new_tokens: int = 4, **wishes) -> GenerationSequence:
        sequence = super().add(prompt, new_tokens, **wishes)
        self.beams[sequence] = beams = Beams(sequence)
        sequence.histories = beams.generated
        return sequence

    @property
    def groups(self) -> list[GenerationSequence]:
        return [s for s in self.those(State.RUNNING) if s.beams]

    def sample(self, sequence: GenerationSequence) -> None:
        if not sequence.beams:
            super().sample(sequence)

    def compute(self, step: Step) -> None:
        going = [group for group in step.groups if group.state is State.RUNNING]
        for group in going:
            self.write(group)
        super().compute(step)
        resumed = [group for group in step.resumed if group.state is State.RUNNING]
        for group in resumed:
            self.resume(group)
        for group in self.groups:
            ready = group.left == 0 and not group.returning and group not in resumed
            if ready and (group.rows is None or group in going):
                self.fork(group)

    def store(self, chunks: list[Chunk], everyone: list[SequencePages]) -> None:
        """What beams had stored is computed again where nobody else has the pages, and behind
        what was stored in earlier steps."""
        again = [chunk for chunk in chunks if chunk.sequence.search]
        for past, first, _ in again:
            self.memory.expect(past.pages.table, past.pages, past.token_ids, first)
        super().store([chunk for chunk in chunks if not chunk.sequence.search], everyone)
        size = self.cache.page_size
        for past, first, tokens in again:
            for end in range(first + 1, first + tokens + 1):
                page = past.pages.table[(end - 1) // size]
                assert self.owners(page) == [past.search]
                self.memory.put(page, past.pages, past.token_ids[:end])

    def owners(self, page: int) -> list[GenerationSequence]:
        """Of a page that is written."""
        return [
            other
            for other in self.those(State.RUNNING)
            if page in other.pages.table
            or page in other.pages.beam_pages
            or (other.pages.source and page in other.pages.source.table)
        ]

    def write(self, group: GenerationSequence) -> None:
        """Stores each beam's token, where nobody else reads or writes."""
        pages = group.rows.block_table[:, group.rows.position // self.cache.page_size].tolist()
        assert len(set(pages)) == len(pages)
        assert set(pages) <= group.pages.beam_pages
        for page, history in zip(pages, self.beams[group].histories, strict=True):
            assert self.owners(page) == [group]
            self.memory.put(page, group.pages, history)

    def fork(self, group: GenerationSequence) -> None:
        beams = self.beams[group]
        if beams.pages is None:
            self.hold(group, [self.cache.beams.begin(group.pages)], group.pages.length)
        if len(beams.histories[0]) + 1 >= group.most_tokens:
            self.scheduler.finish(group)
            return
        count = beams.random.randint(1, group.beams)
        running = len(beams.histories)
        parents = [beams.random.randrange(running) for _ in range(count)]
        beams.histories = [
            (*beams.histories[parent], token) for token, parent in enumerate(parents)
        ]
        self.give_rows(group, parents)

    def resume(self, group: GenerationSequence) -> None:
        pasts = group.returning
        _, of_beams = pasts_of(group.token_ids, self.beams[group].generated())
        self.hold(group, [past.pages.table.tolist() for past in pasts], len(pasts[0].token_ids))
        group.returning = []
        self.give_rows(group, of_beams)

    def hold(self, group: GenerationSequence, tables: list[list[int]], length: int) -> None:
        size = self.cache.page_size
        self.beams[group].pages = kernels.BeamPages(
            beams=group.beams, page_size=size, tables=tables, length=length
        )

    def give_rows(self, group: GenerationSequence, parents: list[int]) -> None:
        """Pages for the next position of beams, whose histories are known."""
        beams, size, prompt = self.beams[group], self.cache.page_size, len(group.token_ids)
        offsets = np.array([0, len(parents)], np.int32)
        wanted = kernels.wanted_pages([beams.pages], offsets).tolist()
        fresh = np.array(self.cache.beams.take([group.pages], wanted[:1]), np.int32)
        kernels.give_pages([beams.pages], offsets, fresh)
        forks = kernels.fork_pages([beams.pages], offsets, np.array(parents, np.int32))
        self.memory.copy_pages([*zip(forks.sources, forks.destinations, strict=True)])
        released = group.pages.beam_pages.intersection(forks.released.tolist())
        self.cache.beams.release(group.pages, released)
        assert set(beams.pages.pages.tolist()) == group.pages.beam_pages | set(group.pages.table)
        self.most_taken = max(self.most_taken, len(group.pages.beam_pages))
        position = len(beams.histories[0]) - 1
        tokens = np.array([history[-1] for history in beams.histories])
        table = kernels.beam_tables([beams.pages], offsets)
        stored = len(parents) * (position - prompt)
        self.cache.advance_beams(stored - (0 if group.rows is None else group.rows.stored))
        group.rows = BeamRows(tokens, position, table, stored)
        for row, history in zip(table, beams.histories, strict=True):
            self.memory.expect(row[: position // size + 1], group.pages, history, position)

    def _check(self, step, running, waiting, single, returning):
        """As the parent's of the others; here of groups."""
        rows = sum(group.rows.tokens.size for group in step.groups)
        chunks = {sequence: tokens for sequence, _, tokens in step.chunks}
        assert len(chunks) <= len(step.chunks)
        assert step.tokens <= self.budget
        encoded = sum(len(sequence.source) for sequence in step.encodes)
        assert step.tokens == encoded + sum(chunks.values()) + rows
        stayed = [sequence for sequence in running if sequence not in step.preempted]
        assert all(one.rank < other.rank for one in stayed for other in step.preempted)
        assert bool(stayed) == bool(running)
        # A group's beams go on in every step.
        assert step.groups == [s for s in sorted(running, key=lambda s: s.rank) if s.rows]
        for sequence in single:
            assert sequence in step.preempted or sequence.beams or chunks[sequence] == 1
        slots = sum(sequence.slots for sequence in self.those(State.RUNNING))
        assert slots <= self.slots
        assert self.cache.available >= 0
        busy = self.those(State.RUNNING) + self.those(State.WAITING)
        assert step.chunks or step.encodes or step.groups or step.resumed or not busy

    def drain(self) -> int:
        """Steps until all are finished."""
        for steps in range(3000):
            if not self.scheduler.running + self.scheduler.waiting:
                cache = self.cache
                assert cache.used == cache.live_tokens == cache.reserved == 0
                return steps
            self.step()
        raise AssertionError("still busy")


def test_a_group_waits_for_slots_of_all_its_beams_and_takes_pages_as_they_grow():
    engine = BeamEngine(pages=20, page_size=4, max_sequences=4)
    engine.add([1] * 5, new_tokens=3, continuations=1)
    group = engine.add([1] * 5, new_tokens=9, beams=4)
    assert engine.step().chunks[0].sequence is not group
    assert group.state is State.WAITING  # three slots are free, it takes four
    while group.state is State.WAITING:
        engine.step()
    # Position 5 lies in the prompt's last page or three more; those of 8 to 12 come later.
    assert len(group.pages.beam_pages) == 4
    assert engine.cache.reserved == 0
    other = engine.add([1, 2])
    assert engine.step().groups == [group]
    assert other.state is State.WAITING
    engine.drain()
    assert engine.most_taken > 4


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_the_last_by_rank_gives_way_be_it_a_group_or_not(prefix_caching):
    """And comes back to where it was; the first never stops."""
    engine = BeamEngine(
        pages=14, page_size=4, max_sequences=8, prefix_caching=prefix_caching, max_batch_tokens=64
    )
    first = engine.add([1] * 4, new_tokens=16, beams=3)
    other = engine.add([2] * 4, new_tokens=20)
    last = engine.add([3] * 4, new_tokens=16, beams=3)
    preempted: list[GenerationSequence] = []
    resumed = []
    histories = {}
    while engine.scheduler.running + engine.scheduler.waiting:
        for group in (first, last):
            histories[group] = engine.beams[group].histories[:]
        step = engine.step()
        preempted += step.preempted
        resumed += step.resumed
        if last in step.preempted:
            assert engine.beams[last].histories == histories[last]
    assert first not in preempted
    assert last in preempted
    assert resumed == [group for group in preempted if group.beams and group is last]
    assert missing(other) == 0
    for group in (first, last):
        assert len(engine.beams[group].histories[0]) == group.most_tokens - 1
    assert engine.cache.used == engine.cache.reserved == engine.cache.live_tokens == 0


def test_a_group_that_comes_back_computes_what_its_beams_share_once():
    """Without a prefix cache everything; with it only what is not in full pages."""
    for prefix_caching in (False, True):
        engine = BeamEngine(pages=60, page_size=4, prefix_caching=prefix_caching)
        group = engine.add([1] * 6, new_tokens=40, beams=4)
        pasts: set[tuple[int, ...]] = set()
        while len(pasts) < 3 or engine.scheduler.running == 0:
            engine.step()
            histories = engine.beams[group].histories
            pasts = {history[:-1] for history in histories if len(histories[0]) > 20}
        stored = len(histories[0]) - 1
        pages = {past[: end + 4] for past in pasts for end in range(0, stored - stored % 4, 4)}
        assert len(pages) < stored // 4 * len(pasts)  # or there is nothing to share
        engine.scheduler._preempt(group)
        assert engine.cache.used == engine.cache.live_tokens == 0
        computed = 0
        while not group.rows:
            computed += engine.step().tokens
        partial = stored % 4 * len(pasts)
        assert computed == partial + (0 if prefix_caching else 4 * len(pages))
        engine.drain()


def test_cancelling_a_group_frees_all_at_once():
    engine = BeamEngine(pages=40, page_size=4)
    group = engine.add([1] * 6, new_tokens=20, beams=4, source=Source([5] * 9))
    for _ in range(9):
        engine.step()
    while len(group.pages.beam_pages) < 5:
        engine.step()
    step = engine.scheduler.plan(99.0)
    engine.scheduler.finish(group)
    engine.compute(step)
    assert engine.cache.used == engine.cache.reserved == engine.cache.live_tokens == 0
    assert engine.step().groups == []


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (GenerationSequence([1], 9, beams=9), r"num_beams: got 9, wanted 1 to 8"),
        (
            GenerationSequence([1] * 5, 22, beams=3),
            r"num_beams: got 3 beams of up to 22 tokens, which can need 16 pages, .* at most 15",
        ),
    ],
)
def test_what_can_never_run_is_refused_at_once(sequence, message):
    engine = BeamEngine(pages=15, page_size=4)
    with pytest.raises(InvalidInput, match=message):
        engine.scheduler.check(sequence)
    engine.add([1] * 5, 16, beams=3)
    engine.drain()


class BeamMachine(RuleBasedStateMachine):
    """Any calls in any order."""

    @initialize(
        pages=st.integers(4, 40),
        page_size=st.integers(1, 4),
        max_sequences=st.integers(1, 6),
        more_tokens=st.integers(0, 8),
        prefix_caching=st.booleans(),
    )
    def start(self, max_sequences, more_tokens, **wishes):
        self.engine = BeamEngine(
            max_sequences=max_sequences, max_batch_tokens=max_sequences + more_tokens, **wishes
        )

    @rule(
        prompt=PROMPTS,
        new_tokens=st.integers(1, 16),
        beams=st.sampled_from([0, 0, 2, 3, 4]),
        priority=st.integers(0, 2),
        source=st.none() | SOURCES,
    )
    def add(self, prompt, new_tokens, beams, source, priority):
        engine = self.engine
        if engine.scheduler.waiting >= 8:
            return
        wishes = {"beams": beams, "priority": priority}
        if source is not None:
            wishes["source"] = Source(source[: engine.budget])
        sequence = GenerationSequence(prompt, len(prompt) + new_tokens, **wishes)
        try:
            engine.scheduler.check(sequence)
        except InvalidInput:
            return
        engine.add(prompt, new_tokens, **wishes)

    @rule(times=st.integers(1, 5))
    def steps(self, times):
        for _ in range(times):
            self.engine.step()

    @rule(data=st.data())
    def cancel(self, data):
        known = self.engine.known
        if known:
            self.engine.scheduler.finish(known[data.draw(st.integers(0, len(known) - 1))])

    @rule(data=st.data())
    def cancel_in_the_middle(self, data):
        """Between what was planned and what is computed."""
        known = self.engine.known
        step = self.engine.scheduler.plan(self.engine.now)
        if known:
            self.engine.scheduler.finish(known[data.draw(st.integers(0, len(known) - 1))])
        self.engine.compute(step)

    @rule(data=st.data())
    def preempt(self, data):
        """Whether pages run out or not."""
        running = self.engine.those(State.RUNNING)
        if running:
            self.engine.scheduler._preempt(data.draw(st.sampled_from(running)))

    @invariant()
    def pages_are_counted(self):
        if not hasattr(self, "engine"):
            return
        cache = self.engine.cache
        assert 0 <= cache.reserved <= cache.free + cache.cached
        running = self.engine.those(State.RUNNING)
        owned = set()
        for sequence in running:
            owned |= set(sequence.pages.table) | sequence.pages.beam_pages
            owned |= set(sequence.pages.source.table if sequence.pages.source else ())
        assert cache.used == len(owned)
        assert cache.reserved == sum(sequence.pages.reserved for sequence in running)

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.drain()


TestBeamMachine = BeamMachine.TestCase
TestBeamMachine.settings = settings(max_examples=150, stateful_step_count=30)
