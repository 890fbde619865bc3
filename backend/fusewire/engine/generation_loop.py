"""Generation, a step at a time, by one thread.

A step: the scheduler says which sequences run and how many of their tokens; pages are copied where
sharing ends; an encoder pass over the sources that are new; one forward pass over all of it; tokens
are sampled for all sequences that are due; each becomes text and an event; a sequence that has
ended frees its slot and pages at once. On a GPU the next step may be under way before tokens are
read (`look_ahead`). Beams go on in the same step; what all texts that can still win begin with
becomes text and events at once, the rest when their search is done.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from fusewire.engine.admission import Admission
from fusewire.engine.aligner import Aligner
from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.beam_groups import BeamGroups
from fusewire.engine.beams_ahead import FoundBeams
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.costs import CostTable
from fusewire.engine.generation_errors import FORBIDDEN, NOT_FINITE, TOO_LATE
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Chunk, Step
from fusewire.engine.look_ahead import Ahead, LookAhead
from fusewire.engine.packing import pack, pack_sources
from fusewire.engine.progress import Progress
from fusewire.engine.prompt_logprobs import PromptRows, PromptScorer
from fusewire.engine.request import CANCELLED, failure
from fusewire.engine.row_owners import Owners
from fusewire.engine.sampling import Draws, PendingDraws, Sampler, SamplingRows
from fusewire.engine.search_answers import delta_of_beams, deltas_of_search
from fusewire.errors import Cancelled, ComputeFailed, DeadlineExceeded, FusewireError, InvalidInput
from fusewire.models.seq2seq_model import Seq2SeqModel
from fusewire.models.step_batch import StepBatch

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

_log = logging.getLogger(__name__)

# Of no step: the next ones say what steps cost now.
_QUIET_S = 10.0
# Kept until somebody takes them; of more the last ones.
_MOST_WAITS = 1024


class GenerationLoop:
    """The requests of one model. Every call from one thread."""

    def __init__(
        self,
        model: DecoderModel,
        cache: DecoderCache,
        scheduler: GenerationScheduler,
        sampler: Sampler,
        beam_groups: BeamGroups,
        scorer: PromptScorer,
        aligner: Aligner,
        admission: Admission,
        costs: CostTable,
        look_ahead: LookAhead | None = None,
    ) -> None:
        """`admission`: notified when a sequence has ended. `costs`: corrected by what steps
        took. `look_ahead`: None where every step waits for the tokens of the one before."""
        self.scheduler = scheduler
        self.progress = Progress()
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._beam_groups = beam_groups
        self._aligner = aligner
        self._scorer = scorer
        self._admission = admission
        self._look_ahead = look_ahead
        self.costs = costs
        self.step_seconds = self.predicted_seconds = 0.0  # of all steps
        # Of requests that began: how long each had waited since it was taken. Whoever shows them
        # takes them away.
        self.queue_seconds: deque[float] = deque(maxlen=_MOST_WAITS)
        self._computed_at = 0.0  # the last step
        # When the last step ended, by time.perf_counter(), and how many it left running.
        self._left: tuple[float, int] | None = None
        self._owners: dict[GenerationSequence, tuple[Generation, Branch]] = {}
        self._deadlines: list[tuple[float, int, Generation]] = []  # a heap
        self._order = count()
        self._scoring: set[GenerationSequence] = set()  # with prompts that are still to score
        # What the last step made certain of searches that go on: told while the next one runs.
        self._settled: list[tuple[Generation, Sequence[tuple[int, float]]]] = []
        # Whose callbacks raised at that: they end after the step, which has rows of theirs.
        self._broken: dict[Generation, FusewireError] = {}

    @property
    def idle(self) -> bool:
        return not self._owners

    def add(self, generation: Generation, sequence: GenerationSequence) -> None:
        """Queues a request by the sequence of its first branch, which the scheduler has checked."""
        self.scheduler.add(sequence)
        self._own(generation, generation.branches[0], sequence)
        if sequence.to_score:
            self._scoring.add(sequence)
        if sequence.deadline is not None:
            heappush(self._deadlines, (sequence.deadline, next(self._order), generation))
            if len(self._deadlines) > 2 * len(self._owners) + 64:  # most of them ended in time
                self._deadlines = [each for each in self._deadlines if each[2].open]
                heapify(self._deadlines)

    def cancel(self, generation: Generation) -> None:
        """Ends what is left of a request; its slots and pages are free on return."""
        self._fail(generation, Cancelled(CANCELLED))

    def cancel_all(self) -> None:
        for generation in self._generations():
            self.cancel(generation)

    def fail_all(self, error: FusewireError) -> None:
        for generation in self._generations():
            self._fail(generation, error)

    def step(self, now: float) -> None:
        """Computes the next step; `now` is seconds on the clock of deadlines. Never raises for a
        request."""
        while self._deadlines and self._deadlines[0][0] <= now:
            self._fail(heappop(self._deadlines)[2], DeadlineExceeded(TOO_LATE))
        ahead = self._look_ahead.take() if self._look_ahead else None
        step = ahead.step if ahead else self._expire(self.scheduler.plan(now))
        if step.empty:
            self._left = None
            return
        if now - self._computed_at > _QUIET_S:
            self.costs.forget()
        self._computed_at = now
        for sequence in step.begun:
            if not sequence.goes_on:
                self.queue_seconds.append(now - self._owners[sequence][0].place.taken_at)
        try:
            began = time.perf_counter()
            tokens, aligned_s = step.tokens, self._aligner.took_s
            if ahead:
                if self._left is not None:  # the device began it no later
                    began = self._left[0]
                self._go_on(ahead, now)
            else:
                self._compute(step, now)
            if self._look_ahead:
                self._look_ahead.drop_ended()
            # What alignments took says nothing about the next step of so many tokens.
            ended, aligning_s = time.perf_counter(), self._aligner.took_s - aligned_s
            took_s = ended - began - aligning_s
            self.predicted_seconds += self.costs.seconds(tokens, 0.0)
            self.step_seconds += took_s
            self.costs.observe(tokens, 0.0, took_s)
            # Those that run wait for all that is done from one step to the next.
            if self._left is not None and self._left[1]:
                self._admission.stepped(self._left[1], ended - self._left[0] - aligning_s)
            self._left = ended, self.scheduler.running
        except Exception as error:
            self._left = None
            if self._look_ahead:
                self._look_ahead.take()
            self.progress.fail()
            failed = failure(error)
            for sequence in step.sequences:
                if sequence in self._owners:
                    self._fail(self._owners[sequence][0], failed)
            for sequence in self.scheduler.sequences():  # forks without an owner yet
                if sequence not in self._owners:
                    self.scheduler.finish(sequence)
        broken, self._broken = self._broken, {}
        for generation, its_error in broken.items():
            self._fail(generation, its_error)

    def _expire(self, step: Step) -> Step:
        """Answers those whose time was over before they ran."""
        for sequence in step.expired:
            self._fail(self._owners[sequence][0], DeadlineExceeded(TOO_LATE))
        return step

    def _generations(self) -> list[Generation]:
        return list({id(of): of for of, _ in self._owners.values()}.values())

    def _go_on(self, ahead: Ahead, now: float) -> None:
        """Takes the tokens of a step that was begun ahead."""
        step = ahead.step
        self.progress.begin(step.tokens)
        self.scheduler.done(step)
        if isinstance(ahead.draws, PendingDraws):
            self._take(ahead.draws, step.decodes.rows.owners, (), step, now)
        else:
            self._take_beams(ahead.draws, step, now)
        self.progress.end(step.tokens)

    def _compute(self, step: Step, now: float) -> None:
        if step.copies:
            source, destination = zip(*step.copies, strict=True)
            self._cache.copy_pages(source, destination)
        tokens = step.tokens
        self.progress.begin(tokens)
        if step.encodes:
            assert isinstance(self._model, Seq2SeqModel)  # no other's sequences have sources
            self._model.encode(pack_sources(step), self._cache)
        if not (step.decodes.rows.sequences or step.prompts or step.groups):
            self.scheduler.done(step)
            self._resume(step)
            self.progress.end(tokens)
            return
        batch, sampled, groups = pack(step)
        logits = self._logits(step, batch)
        self._tell_settled()
        forks = dict(self.scheduler.done(step))
        self._resume(step)
        rows = step.decodes.rows
        if rows.owners is None:
            rows.owners = Owners([self._owners[sequence] for sequence in rows.sequences])
        others: list[tuple[Generation, Branch]] = []
        for sequence in sampled[len(rows.sequences) :]:
            others.append(self._owners[sequence])
            if sequence in forks:
                generation = self._owners[sequence][0]
                for branch, fork in zip(generation.branches[1:], forks[sequence], strict=True):
                    self._own(generation, branch, fork)
                    others.append((generation, branch))
        drawn = len(rows.sequences) + len(others)
        if groups:
            self._search(logits, drawn, groups, step, batch, now)
        if drawn:
            sampling = rows.owners.sampling
            if others:
                sampling = SamplingRows([branch.sampling for _, branch in others])
                if rows.owners.all:
                    sampling = rows.owners.sampling.followed_by(sampling)
            draws = self._sampler.begin(logits.first(drawn) if groups else logits, sampling)
            self._take(draws, rows.owners, others, step, now)
        self.progress.end(tokens - len(sampled) + drawn)

    def _take(
        self,
        pending: PendingDraws,
        decodes: Owners,
        others: Sequence[tuple[Generation, Branch]],
        step: Step,
        now: float,
    ) -> None:
        """Each gets its next token, and what there is to tell is told, while the device has the
        next step already where that is known."""
        alone = not (others or step.prompts or step.groups or step.encodes)
        if self._look_ahead and alone and decodes.most_left > 1:
            self._expire(self._look_ahead.begin(step, pending, decodes.sampling, now))
        draws, count = pending.read(), len(decodes.all)
        decodes.most_left -= 1
        due: Sequence[int] = range(count)
        noted: Collection[int] = ()
        all_run = self._look_ahead is None or decodes.all_run
        if decodes.quiet and all_run and min(draws.tokens[:count]) >= 0:
            noted = decodes.note(draws.tokens[:count], draws.logprobs[:count])
            due = sorted([*noted, *decodes.told]) if noted else decodes.told
        owners = [(row, decodes.all[row]) for row in due]
        for row, (generation, branch) in [*owners, *enumerate(others, count)]:
            sequence = branch.sequence
            if sequence is None:  # its request has failed meanwhile
                continue
            try:
                if row in noted or self._accept(generation, branch, sequence, draws, row):
                    self._tell(generation, branch, sequence, draws, row)
            except Exception as error:
                self._fail(generation, failure(error))

    def _resume(self, step: Step) -> None:
        """The beams of groups that were preempted go on with the next step."""
        for sequence in step.resumed:
            group = self._owners[sequence][0].beams
            assert group is not None
            self._beam_groups.resume(sequence, group)

    def _search(
        self,
        logits: Tensor,
        first: int,
        sequences: list[GenerationSequence],
        step: Step,
        batch: StepBatch,
        now: float,
    ) -> None:
        """Takes the groups on by their rows of logits, from `first` on, tells what is certain of
        their answers, and answers those whose search is done."""
        generations = [self._owners[sequence][0] for sequence in sequences]
        groups = [generation.beams for generation in generations if generation.beams]
        found = self._beam_groups.begin(logits, first, sequences, groups, batch.block_table)
        if found is None:
            settled = self._beam_groups.advance(logits, first, sequences, groups)
            self._answer_groups(sequences, groups, settled)
        else:
            self._take_beams(found, step, now)

    def _take_beams(self, found: FoundBeams, step: Step, now: float) -> None:
        """Searches go on by what was found for them, while the device has the next step already
        where that is known."""
        alone = not (step.decodes.rows.sequences or step.prompts or step.encodes or step.resumed)
        if self._look_ahead and alone:
            self._expire(self._look_ahead.begin_beams(step, found, now))
        self._tell_settled()
        ahead = found.forked
        settled = self._beam_groups.finish(found)
        if self._look_ahead and ahead and not found.forked:
            self._look_ahead.drop()
        self._answer_groups(found.sequences, found.groups, settled)

    def _answer_groups(
        self,
        sequences: Sequence[GenerationSequence],
        groups: Sequence[BeamGroup],
        settled: Mapping[BeamGroup, Sequence[tuple[int, float]]],
    ) -> None:
        both = zip(sequences, groups, strict=True)
        for sequence, group in [one for one in both if one[0].rows is None or one[1] in settled]:
            if sequence not in self._owners:  # it has ended since
                continue
            generation = self._owners[sequence][0]
            if generation in self._broken:
                continue
            try:
                if sequence.rows is None:
                    self._answer_search(generation, group)
                else:
                    self._settled.append((generation, settled[group]))
            except Exception as error:
                self._fail(generation, failure(error))

    def _tell_settled(self) -> None:
        """The device computes meanwhile."""
        late, self._settled = self._settled, []
        for generation, settled in late:
            if not generation.open:  # cancelled meanwhile
                continue
            try:
                self._answer_settled(generation, settled)
            except Exception as error:
                self._broken[generation] = failure(error)

    def _answer_settled(self, generation: Generation, settled: Sequence[tuple[int, float]]) -> None:
        for token, logprob in settled:
            for branch in generation.branches:
                generation.on_event(delta_of_beams(generation, branch, token, logprob))

    def _answer_search(self, generation: Generation, group: BeamGroup) -> None:
        deltas = deltas_of_search(generation, group)
        if generation.decoder_ids:
            texts = [found.tokens.tolist() for found in group.search.hypotheses()]
            self._aligner.align(generation, texts, deltas)
        for branch in generation.branches:
            self._end(generation, branch)
        for delta in deltas:
            generation.on_event(delta)

    def _logits(self, step: Step, batch: StepBatch) -> Tensor:
        """Runs the step, and takes down the log-probabilities of prompts that are wanted."""
        parts = []
        if self._scoring:
            begins = batch.cu_seqlens[len(step.decodes.rows.sequences) :].tolist()
            rows = zip(step.prompts, begins, strict=False)
            parts = [self._part(*each) for each in rows if each[0].sequence in self._scoring]
        if not parts:
            return self._model.step(batch, self._cache)
        hidden = self._model.forward(batch, self._cache)
        self._scorer.score(parts, lambda rows: self._model.logits(hidden, rows))
        return self._model.logits(hidden, batch.logit_rows)

    def _part(self, chunk: Chunk, row: int) -> PromptRows:
        """What there is to score in a chunk, which begins at that row of the step."""
        sequence, first, tokens = chunk
        of = self._owners[sequence][0].prompt_logprobs
        assert of is not None
        begin = sequence.scored
        sequence.scored = end = min(first + tokens, sequence.to_score)
        if end == sequence.to_score:
            self._scoring.discard(sequence)
        return PromptRows(of, begin, end - begin, row + begin - first)

    def _accept(
        self,
        generation: Generation,
        branch: Branch,
        sequence: GenerationSequence,
        draws: Draws,
        row: int,
    ) -> bool:
        """Takes a token; returns whether there is something to tell."""
        token, prompt_logprobs = draws.tokens[row], generation.prompt_logprobs
        if token < 0 or (prompt_logprobs is not None and not prompt_logprobs.sound):
            forbidden = row in draws.forbidden
            at_fault = InvalidInput(*FORBIDDEN) if forbidden else ComputeFailed(NOT_FINITE)
            self._fail(generation, at_fault)
            return False
        sequence.token_ids.append(token)
        if branch.quiet:
            if not branch.untold:
                branch.first_at = time.monotonic()
            branch.untold.append(draws.logprobs[row])
            return branch.ends(token)
        return True

    def _tell(
        self,
        generation: Generation,
        branch: Branch,
        sequence: GenerationSequence,
        draws: Draws,
        row: int,
    ) -> None:
        """Of the token that was taken, and those before it of which nothing was told."""
        if branch.quiet:
            tokens, logprobs = sequence.token_ids[-len(branch.untold) :], branch.untold[:]
            branch.untold.clear()
            branch.continuation.pass_over(tokens[:-1], logprobs[:-1])
        delta = branch.continuation.accept(
            draws.tokens[row],
            draws.logprobs[row],
            draws.ranks[row],
            draws.top_logprobs.get(row, ()),
        )
        delta.first_at = branch.first_at
        delta.num_cached_tokens = sequence.cached_tokens or 0
        delta.prompt_logprobs, generation.prompt_logprobs = generation.prompt_logprobs, None
        if delta.finish_reason is not None:
            if generation.decoder_ids:
                self._aligner.align(
                    generation, [sequence.token_ids[-delta.num_output_tokens :]], [delta]
                )
            self._end(generation, branch)
        generation.on_event(delta)

    def _own(self, generation: Generation, branch: Branch, sequence: GenerationSequence) -> None:
        branch.sequence = sequence
        self._owners[sequence] = (generation, branch)

    def _end(self, generation: Generation, branch: Branch) -> None:
        """A branch is over: its slot and pages are free on return."""
        if branch.open:
            branch.open = False
            generation.open -= 1
            # One that never ran says nothing about how much others generate.
            ran = branch.sequence is not None and branch.sequence.started
            generated = branch.num_output_tokens if ran else None
            self._admission.leave(generation.place, branch.places, generated)
        if branch.sequence is not None:
            self.scheduler.finish(branch.sequence)
            del self._owners[branch.sequence]
            self._scoring.discard(branch.sequence)
            branch.sequence = None
            if self.idle:
                self._beam_groups.forget()

    def _fail(self, generation: Generation, error: FusewireError) -> None:
        """Ends a whole request, unless it has ended."""
        if generation.open:
            for branch in generation.branches:
                self._end(generation, branch)
            try:
                generation.on_event(copy(error))
            except Exception:  # it may be what raised before; others go on
                _log.exception("a callback failed")
