"""Which sequences run in a step, and how many tokens of each: pure policy, no kernels.

Continuous batching: sequences join and leave at every step. A sequence that needs only its next
token gets it in every step; prompts are cut into chunks that fill the rest of the token budget, so
they never stall the others. Pages are taken as tokens come; when they run out, the last of the
running sequences is preempted: it frees its slot and pages, and is computed again later. So nothing
is reserved for the longest case, and running out of pages costs time, never an error.

Beam search is a group: one sequence, whose beams come when its prompt is stored. It takes a slot
for each beam, or waits, and runs whole or not at all. Its pages come as its beams grow: before a
step that ends with a fork, those that the fork can take are reserved. A group that is preempted
comes back with what its beams had stored as so many prompts, which have their common beginnings in
common pages, and goes on where it was. Which beams there are and what they write is the engine's.

A sequence of an encoder-decoder model has a source, which is encoded whole in the step that admits
it, out of the same token budget, unless its pages are still there from an earlier request, or an
equal one is encoded in the same step.
"""

from __future__ import annotations

from bisect import insort
from itertools import count

from fusewire.engine.ahead_planner import AheadPlanner
from fusewire.engine.beam_pasts import pasts_of
from fusewire.engine.capacity import check_capacity
from fusewire.engine.generation_queue import GenerationQueue
from fusewire.engine.generation_sequence import RANK, GenerationSequence, State
from fusewire.engine.generation_step import Chunk, Step
from fusewire.engine.groups_of_step import beams_of, pages_for_forks, returns, to_store
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.running_sequences import RunningSequences
from fusewire.engine.sequence_admission import SequenceAdmission
from fusewire.errors import ConfigurationError


class GenerationScheduler:
    """Plans steps over waiting and running sequences. One thread at a time.

    The engine's loop: `plan`, compute, `done` (after which `plan_ahead` may give the next plan),
    append a token to each sequence whose chunk reached its end and to its new forks, give each
    group whose chunk reached its end, whose beams went on or which is `resumed` its next `rows`,
    `finish` those that are complete; again. `finish` may come at any time between two of these
    calls.

    Invariants. A step has at most `max_batch_tokens` tokens of at most `max_sequences` sequences,
    each beam counted as one. A running sequence with one token left gets it in every step, and so
    do the beams of a group. Admission is in the queue's order (generation_queue), whose first is
    never overtaken. All else goes by rank (priority, then arrival): budget for prompts, and
    preemption (always the last of the running). So the first by rank moves in every step once it
    runs, and as long as anything runs or waits, a step has a chunk, a source or beams, or resumes a
    group. Same calls, same plans.
    """

    def __init__(self, cache: KvCache, max_batch_tokens: int, max_sequences: int) -> None:
        """ConfigurationError when settings contradict each other."""
        self._cache = cache
        self.max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        if max_sequences < 1:
            raise ConfigurationError(
                f"max_sequences: got {max_sequences}, wanted at least 1; raise it"
            )
        if max_batch_tokens < max_sequences:
            raise ConfigurationError(
                f"max_batch_tokens: got {max_batch_tokens}, wanted at least {max_sequences}, a "
                "token for each of max_sequences; raise it or lower max_sequences"
            )
        self.preemptions = 0
        self._running = RunningSequences(cache.page_size)
        self._waiting = GenerationQueue()
        self._admission = SequenceAdmission(cache, self._waiting, self._running, max_sequences)
        self._ahead = AheadPlanner(
            cache,
            self._waiting,
            self._running,
            self._admission,
            max_batch_tokens,
            self._continue,
        )
        self._checked: tuple[int, ...] = ()  # how large the last one was that could run
        self._arrivals = count()
        self._branches = count(1)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def sequences(self) -> list[GenerationSequence]:
        """All sequences that run or wait."""
        return [*self._running, *self._waiting]

    def check(self, sequence: GenerationSequence) -> None:
        """InvalidInput when the sequence could never run, however empty the cache is. From any
        thread."""
        source = -1 if sequence.source is None else len(sequence.source)
        size = len(sequence.token_ids), sequence.most_tokens, source, sequence.beams, sequence.slots
        if size != self._checked:
            check_capacity(sequence, self._cache, self.max_batch_tokens, self._max_sequences)
            self._checked = size

    def add(self, sequence: GenerationSequence) -> None:
        """Puts a new sequence, one that `check` lets pass, into the queue."""
        sequence.rank = sequence.priority, next(self._arrivals), 0
        sequence.names = self._cache.names(sequence.source)
        self._waiting.add(sequence)

    def plan(self, now: float) -> Step:
        """The next step; `now` is seconds on the clock of deadlines."""
        expired, preempted = self._waiting.expire(now), []
        self._running.begin_rows()
        while (last := self._in_the_way()) is not None:
            self._preempt(last)
            preempted.append(last)
        copies = self._running.rows.grow(self._cache)
        decodes = self._running.rows.decodes()
        step = Step(decodes, copies=copies, preempted=preempted, expired=expired)
        budget = self._continue(step)
        self._admission.admit(step, budget)
        groups = self._running.groups
        step.resumed = [group for group in groups if group.returning and returns(group, step)]
        return step

    def plan_ahead(self, step: Step, now: float) -> Step | None:
        """The step after one that is `done`, while nobody has read the tokens that it gave; None:
        read them, and `plan`."""
        return self._ahead.plan(step, now)

    def done(self, step: Step) -> list[tuple[GenerationSequence, list[GenerationSequence]]]:
        """Takes note that the step was computed. Returns the sequences that were forked because
        their prompt is stored now, each with its forks, which run from here on; what the prompt's
        last token says holds for all of them."""
        for pages in step.sources:
            self._cache.store_source(pages)
            self._admission.look_again()  # it may find this source's pages
        self._running.rows.store(step.decodes.rows.sequences, self._cache)
        forked = []
        for sequence, first, tokens in step.prompts:
            if sequence.pages is None:  # finished meanwhile
                continue
            sequence.stored = first + tokens
            if sequence.search is not None:
                continue
            self._cache.advance(sequence.pages, sequence.token_ids, sequence.stored)
            if tokens > 1 and sequence.left == 0:
                self._admission.look_again()  # it may find this prompt's pages
            if sequence.continuations > 1 and sequence.left == 0:
                more = sequence.continuations - 1
                sequence.continuations = 1
                self._running.slots -= more
                forked.append((sequence, [self.fork(sequence) for _ in range(more)]))
        for group in step.resumed:
            if group.pages is not None:
                group.pasts = ()
                self._cache.resume_beams(group.pages, len(group.token_ids))
        return forked

    def fork(self, sequence: GenerationSequence) -> GenerationSequence:
        """A second running sequence that goes on from the same tokens, in the same pages.
        ValueError unless `sequence` runs, is past its prompt, and a slot is free."""
        running = self._running
        if sequence.pages is None or sequence.left > 1 or running.slots >= self._max_sequences:
            raise ValueError(
                f"sequence: got one {sequence.state.value} with {sequence.left} tokens left and "
                f"{running.slots} of {self._max_sequences} slots taken, wanted one running past "
                "its prompt and a free slot"
            )
        twin = sequence.twin(self._cache.fork(sequence.pages), next(self._branches))
        running.add(twin)
        running.rows.share(sequence)
        return twin

    def finish(self, sequence: GenerationSequence) -> None:
        """Ends a sequence that is complete or not wanted any more: its slot and pages are free on
        return. Does nothing when it was finished before."""
        if sequence.state is State.RUNNING:
            self._stop(sequence)
        elif sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        sequence.state = State.FINISHED

    def _in_the_way(self) -> GenerationSequence | None:
        """The last of the running sequences, unless all have room for their next token without
        preempting it. Asked before any page is given, so no page that is copied from is given away
        in the same step."""
        if self.running <= 1:  # one alone has all pages
            return None
        if self._running.most_pages <= self._cache.available:
            return None
        prompts = [each for each in self._running.prompts if each.left]
        wanted = self._running.wanted_pages(prompts, self._cache)
        wanted += sum(pages_for_forks(self._running.groups, self._cache))
        if wanted <= self._cache.available:
            return None
        return self._running.last

    def _continue(self, step: Step) -> int:
        """Puts the beams of groups and chunks of prompts into the step; returns what is left of the
        token budget."""
        for sequence in self._running.prompts:
            if sequence.left == 1:
                self._put(step, sequence, 1)
        prompts = [each for each in self._running.prompts if each.left > 1]
        budget = self.max_batch_tokens - len(step.decodes.rows.sequences) - len(step.prompts)
        for group in self._running.groups:
            if group.rows is not None:
                step.groups.append(group)
            else:
                for each in to_store(group):
                    insort(prompts, each, key=RANK)
        if step.groups:
            step.beams, reserved = beams_of(step.groups, self._cache)
            if any(reserved):
                pages = [group.pages for group in step.groups if group.pages is not None]
                self._cache.beams.reserve(pages, reserved)
        budget -= step.beams
        for sequence in prompts:
            if not budget:
                break
            tokens = min(sequence.left, budget)
            self._put(step, sequence, tokens)
            budget -= tokens
        return budget

    def _put(self, step: Step, sequence: GenerationSequence, tokens: int) -> None:
        assert sequence.pages is not None
        first = sequence.stored
        step.copies += self._cache.reserve(sequence.pages, first + tokens)
        step.prompts.append(Chunk(sequence, first, tokens))

    def _stop(self, sequence: GenerationSequence) -> None:
        """Stops a running sequence: its slot and pages are free."""
        assert sequence.pages is not None
        self._running.remove(sequence)
        rows = sequence.rows
        self._cache.release(sequence.pages, 0 if rows is None else rows.stored)
        sequence.pages, sequence.rows, sequence.stored = None, None, 0
        for past in sequence.returning:
            past.pages = None
        sequence.returning = ()

    def _preempt(self, sequence: GenerationSequence) -> None:
        """Sends a running sequence back to the queue; for a group what its beams have stored is
        noted."""
        rows, pages = sequence.rows, sequence.pages
        if rows is not None and pages is not None:
            assert sequence.histories is not None
            sequence.pasts, of_beams = pasts_of(sequence.token_ids, sequence.histories())
            beams = [of_beams.index(past) for past in range(len(sequence.pasts))]
            self._cache.beams.suspend(pages, sequence.pasts, rows.block_table[beams].tolist())
        self._stop(sequence)
        self._waiting.add(sequence)
        self.preemptions += 1
