"""Groups of beams among other sequences: never preempted, never short of a page, and whatever
happens, their pages hold what their beams wrote and are free at the end."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from fusewire import kernels
from fusewire.engine.generation_scheduler import GenerationSequence, State, Step
from fusewire.engine.generation_sequence import BeamRows
from fusewire.engine.kv_cache import Source
from fusewire.errors import InvalidInput
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.test_generation_scheduler import PROMPTS, SOURCES, Engine, missing


class Beams:
    """A search that forks at random, with a memory of its own of what each page holds."""

    def __init__(self, sequence: GenerationSequence, page_size: int, table: list[int]) -> None:
        self.sequence = sequence
        self.pages = kernels.BeamPages(
            beams=sequence.beams,
            page_size=page_size,
            tables=[table],
            length=sequence.pages.length,
        )
        self.histories: list[tuple[int, ...]] = [tuple(sequence.token_ids)]
        self.random = Random(sequence.arrival)


class BeamEngine(Engine):
    """With groups, whose beams are forked as the engine's are."""

    def __init__(self, **wishes) -> None:
        super().__init__(**wishes)
        self.beams: dict[GenerationSequence, Beams] = {}
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}  # (page, place) -> history
        self.most_taken = 0

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
        for group in self.groups:
            if group.left == 0 and (group.rows is None or group in going):
                self.fork(group)

    def write(self, group: GenerationSequence) -> None:
        """Stores each beam's token, where nobody else reads or writes."""
        place = group.rows.position % self.cache.page_size
        pages = group.rows.block_table[:, group.rows.position // self.cache.page_size].tolist()
        assert len(set(pages)) == len(pages)
        for other in self.those(State.RUNNING):
            of_other = set(other.pages.table) | set(
                other.pages.source.table if other.source else ()
            )
            assert not of_other & set(pages)
            assert other is group or not other.pages.beam_pages & set(pages)
        assert set(pages) <= group.pages.beam_pages
        for page, history in zip(pages, self.beams[group].histories, strict=True):
            self.written[page, place] = history

    def fork(self, group: GenerationSequence) -> None:
        size, prompt = self.cache.page_size, len(group.token_ids)
        if group not in self.beams:
            table = self.cache.begin_beams(group.pages)
            self.beams[group] = Beams(group, size, table)
            for position in range(prompt // size * size, prompt):
                self.written[table[-1], position % size] = tuple(group.token_ids[: position + 1])
        beams = self.beams[group]
        if len(beams.histories[0]) + 1 >= group.most_tokens:
            self.scheduler.finish(group)
            return
        count = beams.random.randint(1, group.beams)
        running = len(beams.histories)
        parents = np.array([beams.random.randrange(running) for _ in range(count)], np.int32)
        offsets = np.array([0, count], np.int32)
        wanted = kernels.wanted_pages([beams.pages], offsets).tolist()
        fresh = np.array(self.cache.take_for_beams(group.pages, wanted[0]), np.int32)
        forks = kernels.fork_pages([beams.pages], offsets, parents, fresh)
        read = dict(self.written)
        for source, target in zip(forks.sources, forks.destinations, strict=True):
            for place in range(size):
                if (source, place) in read:
                    self.written[target, place] = read[source, place]
        self.cache.release_of_beams(group.pages, forks.released.tolist())
        assert set(beams.pages.pages.tolist()) == group.pages.beam_pages | set(group.pages.table)
        self.most_taken = max(self.most_taken, len(group.pages.beam_pages))
        beams.histories = [
            (*beams.histories[parent], token) for token, parent in enumerate(parents.tolist())
        ]
        position = len(beams.histories[0]) - 1
        tokens = np.array([history[-1] for history in beams.histories])
        group.rows = BeamRows(tokens, position, forks.block_table)
        self.cache.advance_beams(group.pages, count * (position - prompt))
        for row, history in zip(forks.block_table, beams.histories, strict=True):
            for at in range(prompt // size * size, position):
                assert self.written[row[at // size], at % size] == history[: at + 1]

    def _check(self, step, running, waiting, single):
        """As the parent's of the others; here of groups."""
        rows = sum(group.rows.tokens.size for group in step.groups)
        chunks = {sequence: tokens for sequence, _, tokens in step.chunks}
        assert len(chunks) <= len(step.chunks)
        assert step.tokens <= self.budget
        encoded = sum(len(sequence.source) for sequence in step.encodes)
        assert step.tokens == encoded + sum(chunks.values()) + rows
        assert not any(sequence.beams for sequence in step.preempted)
        # A group's beams go on in every step.
        assert step.groups == [s for s in sorted(running, key=lambda s: s.rank) if s.rows]
        for sequence in single:
            assert sequence in step.preempted or sequence.beams or chunks[sequence] == 1
        slots = sum(sequence.slots for sequence in self.those(State.RUNNING))
        assert slots <= self.slots
        assert self.cache.available >= 0
        busy = self.those(State.RUNNING) + self.those(State.WAITING)
        assert step.chunks or step.encodes or step.groups or not busy

    def drain(self) -> int:
        """Steps until all are finished."""
        for steps in range(3000):
            if not self.scheduler.running + self.scheduler.waiting:
                cache = self.cache
                assert cache.used == cache.live_tokens == cache.reserved == 0
                return steps
            self.step()
        raise AssertionError("still busy")


def test_a_group_waits_for_slots_and_pages_of_all_its_beams():
    engine = BeamEngine(pages=20, page_size=4, max_sequences=4)
    engine.add([1] * 5, new_tokens=3, continuations=1)
    group = engine.add([1] * 5, new_tokens=9, beams=4)
    assert engine.step().chunks[0].sequence is not group
    assert group.state is State.WAITING  # three slots are free, it takes four
    while group.state is State.WAITING:
        engine.step()
    # Positions 5 to 12: four pages of 4 to 7, one of them the prompt's, and of two spans more.
    assert engine.cache.reserved + len(group.pages.beam_pages) == 3 * 4
    other = engine.add([1, 2])
    assert engine.step().groups == [group]
    assert other.state is State.WAITING
    engine.drain()


def test_others_leave_what_is_reserved_and_are_preempted_for_it():
    engine = BeamEngine(pages=15, page_size=4, max_sequences=4)
    group = engine.add([1] * 4, new_tokens=9, beams=3, priority=1)
    engine.step()
    assert engine.cache.reserved + len(group.pages.beam_pages) == 6
    other = engine.add([2] * 4, new_tokens=30, priority=0)
    preempted = []
    while group.state is State.RUNNING:
        preempted += engine.step().preempted
    assert other not in preempted  # eight pages were left for it
    long = engine.add([3] * 4, new_tokens=28, beams=1)
    assert long.slots == 1
    engine.drain()
    assert missing(other) == 0


def test_one_that_runs_beside_groups_gives_way_and_comes_back():
    engine = BeamEngine(pages=9, page_size=4, max_sequences=4)
    other = engine.add([2] * 3, new_tokens=9)
    engine.step()
    group = engine.add([1] * 4, new_tokens=9, beams=3)
    engine.step()
    while group.state is State.RUNNING:
        engine.step()
    assert engine.scheduler.preemptions == 1
    engine.drain()
    assert missing(other) == 0


def test_cancelling_a_group_frees_all_at_once():
    engine = BeamEngine(pages=40, page_size=4)
    group = engine.add([1] * 6, new_tokens=20, beams=4, source=Source([5] * 9))
    for _ in range(9):
        engine.step()
    assert engine.cache.reserved > 0
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
        engine.scheduler.add(sequence)
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
TestBeamMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
