"""Generation, a step at a time, by one thread.

A step: the scheduler says which sequences run and how many of their tokens; pages are copied where
sharing ends; an encoder pass over the sources that are new; one forward pass over all of it; tokens
are sampled for all sequences that are due; each becomes text and an event; a sequence that has
ended frees its slot and pages at once. On a GPU the next step may be under way before tokens are
read (`look_ahead`). Beams go on in the same step; what all texts that can still
win begin with becomes text and events at once, the rest when their search is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from fusewire.engine.admission import Admission, Place
from fusewire.engine.beam_groups import BeamGroup, BeamGroups
from fusewire.engine.beams_ahead import FoundBeams
from fusewire.engine.continuation import Alignment, Continuation, Delta
from fusewire.engine.costs import CostTable
from fusewire.engine.generation_scheduler import (
    Chunk,
    GenerationScheduler,
    GenerationSequence,
    Step,
)
from fusewire.engine.look_ahead import Ahead, LookAhead
from fusewire.engine.packing import pack, pack_sources
from fusewire.engine.progress import Progress
from fusewire.engine.prompt_logprobs import PromptLogprobs, PromptRows, PromptScorer
from fusewire.engine.request import CANCELLED, failure
from fusewire.engine.sampling import Draws, PendingDraws, Sampler, SamplingRows, SamplingState
from fusewire.errors import Cancelled, ComputeFailed, DeadlineExceeded, FusewireError, InvalidInput
from fusewire.models.seq2seq_model import Seq2SeqModel
from fusewire.models.step_batch import StepBatch

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

_log = logging.getLogger(__name__)

TOO_LATE = (
    "timeout_seconds: got more work than fits into this time, wanted the last token within it; "
    "allow more time, or try again later"
)

NOT_FINITE = (
    "compute: got logits that are NaN or infinite, wanted finite ones; use another dtype, or "
    "report the model"
)

FORBIDDEN = (
    "sampling_parameters",
    "constraints that forbid every possible next token",
    "at least one allowed token",
    "relax no_repeat_ngram_size, bad_words, suppress_tokens or min_new_tokens, or ask for fewer",
)

# Of no step: the next ones say what steps cost now.
_QUIET_S = 10.0

# An event of a request: what a step added, or the error that ends it.
Event = Delta | FusewireError


@dataclass(eq=False)
class Branch:
    """One continuation of a request, as each part of the engine knows it."""

    continuation: Continuation
    sampling: SamplingState
    quiet: bool = False  # nothing is told before its end
    sequence: GenerationSequence | None = None  # of all but the first: once the prompt is stored
    open: bool = True
    places: int = 1  # that it has of the admission's
    untold: list[float] = field(default_factory=list)  # log-probabilities of tokens, while quiet

    @property
    def num_output_tokens(self) -> int:
        return self.continuation.num_output_tokens + len(self.untold)

    @property
    def most_left(self) -> int:
        """Tokens until it is as long as it may be."""
        return self.continuation.max_new_tokens - self.num_output_tokens

    def ends(self, token: int) -> bool:
        """Whether the last of its tokens, which is untold, does."""
        return self.continuation.ends(token, self.num_output_tokens)


@dataclass(eq=False)
class Generation:
    """A running request: its branches, and the callback for their events, which must return at
    once. Of a beam search the branches are its best hypotheses, which end together; the sequence
    of the first is that of all."""

    branches: list[Branch]
    on_event: Callable[[Event], None]
    place: Place  # that it has of the admission's
    beams: BeamGroup | None = None
    prompt_logprobs: PromptLogprobs | None = None  # where requested, until the first event has them
    # What the decoder begins with, where texts are to be aligned with their source.
    decoder_ids: Sequence[int] = ()
    open: int = field(init=False)  # branches that have not ended

    def __post_init__(self) -> None:
        self.open = len(self.branches)


class Owners:
    """Those to whom a step's rows of logits belong, in order; of sequences that take one token each
    for as many steps as these stay the same. What is done for the quiet ones in a step is but a
    note of the token."""

    def __init__(self, owners: Sequence[tuple[Generation, Branch]]) -> None:
        self.all = owners
        self.sampling = SamplingRows([branch.sampling for _, branch in owners])
        self.told = [row for row, (_, branch) in enumerate(owners) if not branch.quiet]
        self.quiet = [row for row, (_, branch) in enumerate(owners) if branch.quiet]
        quiet = [owners[row][1] for row in self.quiet]
        self._token_ids = [branch.sequence.token_ids for branch in quiet if branch.sequence]
        self._untold = [branch.untold for branch in quiet]
        self._stop_tokens = {t for each in quiet for t in each.continuation.stop_tokens}
        # Steps until one of them is as long as it may be, and one of all.
        self._steps_left = min([each.most_left for each in quiet], default=0)
        self.most_left = min([branch.most_left for _, branch in owners], default=0)

    @property
    def all_run(self) -> bool:
        """Whether none has ended since; others may run in their place."""
        return all([branch.sequence is not None for _, branch in self.all])

    def note(self, tokens: list[int], logprobs: list[float]) -> set[int]:
        """Takes the tokens of the quiet rows; returns which rows these have ended."""
        if self.told:
            tokens = [tokens[row] for row in self.quiet]
            logprobs = [logprobs[row] for row in self.quiet]
        for ids, untold, token, logprob in zip(
            self._token_ids, self._untold, tokens, logprobs, strict=True
        ):
            ids.append(token)
            untold.append(logprob)
        self._steps_left -= 1
        if self._steps_left > 0 and self._stop_tokens.isdisjoint(tokens):
            return set()
        rows = zip(self.quiet, tokens, strict=True)
        return {row for row, token in rows if self.all[row][1].ends(token)}


@dataclass(frozen=True)
class EngineCounts:
    """An engine at one moment. Sequences run or wait, for `backlog_seconds` of work; pages are of
    keys and values, those in use of `page_bytes` each hold `live_tokens` (one that sequences share
    counts for each); tokens were computed, of sources, prompts and answers, or found with
    `prefix_hit_tokens`. Steps took `step_seconds` where `predicted_seconds` were predicted, and
    replayed a recorded one, with `padding_tokens`, or found none that they could have replayed."""

    running: int
    waiting: int
    backlog_seconds: float
    used_pages: int
    pages: int
    page_bytes: int
    live_tokens: int
    tokens: int
    step_seconds: float
    predicted_seconds: float
    preemptions: int
    prefix_hit_tokens: int
    graph_hits: int
    graph_misses: int
    padding_tokens: int


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
        self._scorer = scorer
        self._admission = admission
        self._look_ahead = look_ahead
        self.costs = costs
        self.step_seconds = self.predicted_seconds = 0.0  # of all steps
        self._computed_at = 0.0  # the last step
        # When the last step ended, by time.perf_counter(), and how many it left running.
        self._left: tuple[float, int] | None = None
        self._aligning_s = 0.0  # of this step
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
        try:
            began = time.perf_counter()
            tokens, self._aligning_s = step.tokens, 0.0
            if ahead:
                if self._left is not None:  # the device began it no later
                    began = self._left[0]
                self._go_on(ahead, now)
            else:
                self._compute(step, now)
            if self._look_ahead:
                self._look_ahead.drop_ended()
            # What alignments took says nothing about the next step of so many tokens.
            ended = time.perf_counter()
            took_s = ended - began - self._aligning_s
            self.predicted_seconds += self.costs.seconds(tokens, 0.0)
            self.step_seconds += took_s
            self.costs.observe(tokens, 0.0, took_s)
            # Those that run wait for all that is done from one step to the next.
            if self._left is not None and self._left[1]:
                self._admission.stepped(self._left[1], ended - self._left[0] - self._aligning_s)
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
        for sequence, group in zip(sequences, groups, strict=True):
            if sequence not in self._owners:  # it has ended since
                continue
            generation = self._owners[sequence][0]
            if generation in self._broken or (sequence.rows is not None and group not in settled):
                continue
            try:
                if sequence.rows is None:
                    self._answer_search(generation, group)
                elif not generation.branches[0].quiet:
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
                generation.on_event(_delta_of_beams(generation, branch, token, logprob))

    def _answer_search(self, generation: Generation, group: BeamGroup) -> None:
        hypotheses = group.search.hypotheses()
        # Where nothing changes log-probabilities, no token is left of logits at -inf alone.
        if group.search.broken or not (hypotheses or group.changes_logits):
            raise ComputeFailed(NOT_FINITE)
        if not hypotheses:
            raise InvalidInput(*FORBIDDEN)
        if len(hypotheses) < len(generation.branches):
            wanted = f"at most {len(hypotheses)}, the texts that this search has found"
            raise InvalidInput("n", len(generation.branches), wanted, "ask for fewer")
        deltas: list[Delta] = []
        for branch, found in zip(generation.branches, hypotheses, strict=False):
            settled = branch.continuation.num_output_tokens
            log_probs = found.log_probs[settled:].tolist()
            tokens = found.tokens[settled:].tolist()
            if branch.quiet:
                branch.continuation.pass_over(tokens[:-1], log_probs[:-1])
                tokens, log_probs = tokens[-1:], log_probs[-1:]
            for token, logprob in zip(tokens, log_probs, strict=True):
                deltas.append(_delta_of_beams(generation, branch, token, logprob))
            deltas[-1].score = found.score
        if generation.decoder_ids:
            self._align(generation, [found.tokens.tolist() for found in hypotheses], deltas)
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
        delta.num_cached_tokens = sequence.cached_tokens or 0
        delta.prompt_logprobs, generation.prompt_logprobs = generation.prompt_logprobs, None
        if delta.finish_reason is not None:
            if generation.decoder_ids:
                self._align(generation, [sequence.token_ids[-delta.num_output_tokens :]], [delta])
            self._end(generation, branch)
        generation.on_event(delta)

    def _align(
        self, generation: Generation, texts: Sequence[list[int]], deltas: Sequence[Delta]
    ) -> None:
        """Gives the last delta of each text, of which there may be more, its alignment: reads the
        texts and their source once more, while all else waits."""
        lasts = [delta for delta in deltas if delta.finish_reason is not None]
        sequence = next(each.sequence for each in generation.branches if each.sequence)
        source = sequence.source
        assert source is not None
        assert isinstance(self._model, Seq2SeqModel)
        begin = generation.decoder_ids
        read = [[*begin, *tokens[:-1]] for tokens in texts[: len(lasts)]]
        began = time.perf_counter()
        most = self.scheduler.max_batch_tokens
        try:
            found = self._model.alignments(source.token_ids, read, most)
        finally:
            self._aligning_s += time.perf_counter() - began
        for delta, tokens, weights in zip(lasts, texts, found, strict=False):
            delta.alignment = Alignment(source.token_ids, tokens, weights[len(begin) - 1 :])

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


def _delta_of_beams(generation: Generation, branch: Branch, token: int, logprob: float) -> Delta:
    """The next token of one of a search's texts."""
    sequence = generation.branches[0].sequence
    assert sequence is not None
    delta = branch.continuation.accept(token, logprob)
    delta.num_cached_tokens = sequence.cached_tokens or 0
    return delta
