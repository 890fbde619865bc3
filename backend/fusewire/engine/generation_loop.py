"""Generation, a step at a time, by one thread.

A step: the scheduler says which sequences run and how many of their tokens; pages are copied where
sharing ends; an encoder pass over the sources that are new; one forward pass over all of it; tokens
are sampled for all sequences that are due; each becomes text and an event; a sequence that has
ended frees its slot and pages at once. On a GPU the next step may be under way before tokens are
read (`look_ahead`). Beams go on in the same step; what all texts that can still win begin with
becomes text and events at once, the rest when their search is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusewire.engine.admission import Admission
from fusewire.engine.aligner import Aligner
from fusewire.engine.beam_groups import BeamGroups
from fusewire.engine.beams_ahead import BeamsAhead, FoundBeams
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.costs import CostTable
from fusewire.engine.generation_errors import TOO_LATE
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Step
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.look_ahead import Ahead, LookAhead
from fusewire.engine.open_requests import OpenRequests
from fusewire.engine.packing import pack, pack_sources
from fusewire.engine.progress import Progress
from fusewire.engine.prompt_logprobs import PromptRows, PromptScorer
from fusewire.engine.request import CANCELLED, failure
from fusewire.engine.row_owners import Owners
from fusewire.engine.sampling import PendingDraws, Sampler
from fusewire.engine.sampling_rows import SamplingRows
from fusewire.engine.search_answers import SearchAnswers
from fusewire.engine.token_answers import TokenAnswers
from fusewire.errors import Cancelled, DeadlineExceeded, FusewireError
from fusewire.models.seq2seq_model import Seq2SeqModel
from fusewire.models.step_batch import StepBatch

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

# Seconds without a step after which the next ones say what steps cost now.
_QUIET_S = 10.0
# Waits in the queue that are kept until somebody takes them: the last ones.
_MOST_WAITS = 1024


class GenerationLoop:
    """The requests of one model. Every call from one thread."""

    def __init__(
        self,
        model: DecoderModel,
        cache: DecoderCache,
        pages: KvCache,
        scheduler: GenerationScheduler,
        aligner: Aligner,
        admission: Admission,
        costs: CostTable,
        *,
        look_ahead: bool,
    ) -> None:
        """`admission`: notified when a sequence has ended. `costs`: corrected by what steps
        took. `look_ahead`: whether a step may begin before the tokens of the one before are
        read."""
        self.scheduler = scheduler
        self.progress = Progress()
        self._model = model
        self._cache = cache
        place, vocab_size = model.place, model.vocab_size
        self._sampler = sampler = Sampler(place, vocab_size)
        self._beam_groups = beam_groups = BeamGroups(
            place, vocab_size, pages, cache, BeamsAhead(model, cache)
        )
        self._look_ahead = (
            LookAhead(model, cache, scheduler, sampler, beam_groups) if look_ahead else None
        )
        self._scorer = PromptScorer(place, vocab_size)
        self._aligner = aligner
        self._admission = admission
        self.costs = costs
        self.step_seconds = self.predicted_seconds = 0.0  # of all steps
        # How long each request that began had waited since it was taken. Whoever shows these times
        # takes them away.
        self.queue_seconds: deque[float] = deque(maxlen=_MOST_WAITS)
        self._computed_at = 0.0  # when the last step was
        # When the last step ended, by time.perf_counter(), and how many it left running.
        self._left: tuple[float, int] | None = None
        self._requests = OpenRequests(scheduler, admission, beam_groups)
        self._token_answers = TokenAnswers(self._requests, aligner)
        self._search_answers = SearchAnswers(self._requests, aligner)

    @property
    def idle(self) -> bool:
        return not self._requests.owners

    def add(self, generation: Generation, sequence: GenerationSequence) -> None:
        """Queues a request by the sequence of its first branch, which the scheduler has checked;
        not one that was cancelled before it came."""
        if generation.open:
            self.scheduler.add(sequence)
            self._requests.add(generation, sequence)

    def add_all(self, requests: Sequence[tuple[Generation, GenerationSequence]]) -> None:
        """Queues requests that come together, as `add`."""
        for generation, sequence in requests:
            self.add(generation, sequence)

    def cancel(self, generation: Generation) -> None:
        """Ends what is left of a request; its slots and pages are free on return."""
        self._requests.fail(generation, Cancelled(CANCELLED))

    def cancel_all(self) -> None:
        self._requests.fail_all(Cancelled(CANCELLED))

    def fail_all(self, error: FusewireError) -> None:
        self._requests.fail_all(error)

    def step(self, now: float) -> None:
        """Computes the next step; `now` is seconds on the clock of deadlines. Never raises for a
        request."""
        self._requests.fail_late(now)
        ahead = self._look_ahead.take() if self._look_ahead else None
        step = ahead.step if ahead else self._planned(self.scheduler.plan(now), now)
        if step.empty:
            self._left = None
            return
        if now - self._computed_at > _QUIET_S:
            self.costs.forget()
        self._computed_at = now
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
            # What alignments took says nothing about the next step with as many tokens.
            ended, aligning_s = time.perf_counter(), self._aligner.took_s - aligned_s
            took_s = ended - began - aligning_s
            self.predicted_seconds += self.costs.seconds(tokens, 0.0)
            self.step_seconds += took_s
            self.costs.observe(tokens, 0.0, took_s)
            # Running sequences wait for all that is done from one step to the next.
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
                if sequence in self._requests.owners:
                    self._requests.fail(self._requests.owners[sequence][0], failed)
            for sequence in self.scheduler.sequences():  # forks without an owner yet
                if sequence not in self._requests.owners:
                    self.scheduler.finish(sequence)
        self._search_answers.fail_broken()

    def _planned(self, step: Step, now: float) -> Step:
        """Notes how long those waited who begin, and answers requests whose time was over before
        they ran; returns the step."""
        for sequence in step.begun:
            if not sequence.goes_on:
                self.queue_seconds.append(now - self._requests.owners[sequence][0].place.taken_at)
        for sequence in step.expired:
            self._requests.fail(self._requests.owners[sequence][0], DeadlineExceeded(TOO_LATE))
        return step

    def _go_on(self, ahead: Ahead, now: float) -> None:
        """Takes the tokens of a step that was begun ahead."""
        step = ahead.step
        tokens = step.tokens
        self.progress.begin(tokens)
        self.scheduler.done(step)
        if isinstance(ahead.draws, PendingDraws):
            owners, others = step.decodes.rows.owners, ahead.others
            assert ahead.sampling is not None
            self._take(ahead.draws, ahead.sampling, owners, others, step, now, goes_on=True)
        else:
            self._take_beams(ahead.draws, step, now)
        self.progress.end(tokens)

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
        self._search_answers.tell_settled()
        forks = dict(self.scheduler.done(step))
        self._resume(step)
        rows = step.decodes.rows
        if rows.owners is None:
            rows.owners = Owners([self._requests.owners[sequence] for sequence in rows.sequences])
        others: list[tuple[Generation, Branch]] = []
        for sequence in sampled[len(rows.sequences) :]:
            others.append(self._requests.owners[sequence])
            if sequence in forks:
                generation = self._requests.owners[sequence][0]
                for branch, fork in zip(generation.branches[1:], forks[sequence], strict=True):
                    self._requests.own(generation, branch, fork)
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
            goes_on = not (groups or forks)
            self._take(draws, sampling, rows.owners, others, step, now, goes_on=goes_on)
        self.progress.end(tokens - len(sampled) + drawn)

    def _take(
        self,
        pending: PendingDraws,
        sampling: SamplingRows,
        decodes: Owners,
        others: Sequence[tuple[Generation, Branch]],
        step: Step,
        now: float,
        *,
        goes_on: bool,
    ) -> None:
        """Gives each branch its next token, and tells what there is to tell, while the device has
        the next step already where that is known. `goes_on`: whether the next step may be of these
        alone."""
        if self._look_ahead and goes_on:
            left = [decodes.most_left, *(branch.most_left for _, branch in others)]
            if max(left) > 1 and 0 not in left[1:]:
                drawn = [*step.decodes.rows.sequences, *(branch.sequence for _, branch in others)]
                asked = step, pending, sampling, drawn, self._requests.owners, now
                self._planned(self._look_ahead.begin(*asked), now)
        all_run = self._look_ahead is None or decodes.all_run
        self._token_answers.give(pending.read(), decodes, others, all_run=all_run)

    def _resume(self, step: Step) -> None:
        """Lets the beams of groups that were preempted go on with the next step."""
        for sequence in step.resumed:
            group = self._requests.owners[sequence][0].beams
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
        generations = [self._requests.owners[sequence][0] for sequence in sequences]
        groups = [generation.beams for generation in generations if generation.beams]
        found = self._beam_groups.begin(logits, first, sequences, groups, batch.block_table)
        if found is None:
            advanced = self._beam_groups.advance(logits, first, sequences, groups)
            self._search_answers.tell(advanced)
        else:
            self._take_beams(found, step, now)

    def _take_beams(self, found: FoundBeams, step: Step, now: float) -> None:
        """Takes searches on by what was `found` for them, while the device has the next step
        already where that is known."""
        alone = not (step.decodes.rows.sequences or step.prompts or step.encodes or step.resumed)
        if self._look_ahead and alone:
            self._planned(self._look_ahead.begin_beams(step, found, now), now)
        self._search_answers.tell_settled()
        ahead = found.forked
        advanced = self._beam_groups.finish(found)
        if self._look_ahead and ahead and not found.forked:
            self._look_ahead.drop()
        self._search_answers.tell(advanced)

    def _logits(self, step: Step, batch: StepBatch) -> Tensor:
        """Runs the step, and takes down the log-probabilities of prompts that are wanted."""
        parts = self._to_score(step, batch) if step.prompts else []
        if not parts:
            return self._model.step(batch, self._cache)
        hidden = self._model.forward(batch, self._cache)
        self._scorer.score(parts, lambda rows: self._model.logits(hidden, rows))
        return self._model.logits(hidden, batch.logit_rows)

    def _to_score(self, step: Step, batch: StepBatch) -> list[PromptRows]:
        """The rows of the step that score prompts which are still to be scored."""
        rows = batch.cu_seqlens[len(step.decodes.rows.sequences) :].tolist()
        parts = []
        for (sequence, first, tokens), row in zip(step.prompts, rows, strict=False):
            if sequence.scored == sequence.to_score:
                continue
            of = self._requests.owners[sequence][0].prompt_logprobs
            assert of is not None
            begin = sequence.scored
            sequence.scored = end = min(first + tokens, sequence.to_score)
            parts.append(PromptRows(of, begin, end - begin, row + begin - first))
        return parts
