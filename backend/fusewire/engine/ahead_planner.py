"""The step after one whose tokens nobody has read: pure policy, no kernels.

All sequences of the step that are not as long as they may be are taken to go on, and what is
computed of one that has ended is in vain; its slot and pages are free a step later. A step is
planned so only where it does not depend on the tokens: it has the sequences of the one before, with
pages for all of them, and chunks of plain prompts, also of those that begin. Where there is none,
nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from fusewire.engine.beam_rows import BeamRowsOf
from fusewire.engine.generation_queue import GenerationQueue
from fusewire.engine.generation_step import Step
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.running_sequences import RunningSequences
from fusewire.engine.sequence_admission import SequenceAdmission


class AheadPlanner:
    """Plans steps over running sequences while all that wait have to."""

    def __init__(
        self,
        cache: KvCache,
        waiting: GenerationQueue,
        running: RunningSequences,
        admission: SequenceAdmission,
        max_batch_tokens: int,
        continue_prompts: Callable[[Step], int],
    ) -> None:
        """`continue_prompts`: puts chunks of running prompts into a step, and returns what is left
        of its budget."""
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._max_batch_tokens = max_batch_tokens
        self._continue_prompts = continue_prompts

    def plan(self, step: Step, now: float) -> Step | None:
        """The step after one that is done (GenerationScheduler); None where others than plain ones
        are to run too, or pages are short."""
        running = self._running
        if not running.rows.are_of(step.decodes.rows):
            return None
        # Those whose prompt is stored go on with the token that nobody has read.
        ready = [each for each in running.prompts if not each.left]
        prompts = [each for each in running.prompts if each.left]
        if running.groups:
            if prompts or step.prompts or self._begins(plain=False):
                return None
            return self._plan_groups(step, now)
        last = [each for each in (*running.rows, *ready) if each.ends_next]
        if len(last) == len(running.rows) + len(ready):
            return None
        plain = all([each.plain for each in prompts])
        if not plain or self._begins(plain=True):
            return None
        if running.wanted_pages(running.prompts, self._cache) > self._cache.available:
            return None
        for sequence in last:
            running.done(sequence)
        for sequence in ready:
            if not sequence.ends_next:
                running.prompts.remove(sequence)
                running.rows.join(sequence)
        copies = running.rows.grow(self._cache)
        step = Step(running.rows.decodes(), copies=copies, expired=self._waiting.expire(now))
        budget = self._continue_prompts(step)
        assert not step.copies  # only a fork shares a page that is not full: its step is planned
        self._admission.admit(step, budget, only_plain=True)
        return step

    def _begins(self, *, plain: bool) -> bool:
        """Whether the first that waits can run in the next step, and is not `plain` where those may
        be."""
        waiting = self._waiting.first
        if waiting is None or (plain and waiting.plain):
            return False
        budget = self._max_batch_tokens - len(self._running.rows) - self._running.beams
        return not self._admission.must_wait(waiting, budget)

    def _plan_groups(self, step: Step, now: float) -> Step | None:
        """As `plan`, for a step of groups alone. Pages for the forks after it are not reserved yet,
        as those for the forks before it are not taken."""
        groups = [*self._running.groups]
        first = groups[0].rows
        # All as one step left them, and their beams go on after this one.
        if step.decodes.rows.sequences or not isinstance(first, BeamRowsOf):
            return None
        rows = first.step
        if not rows.are_of(groups):
            return None
        # Whoever waits has the slots of those that end.
        if rows.least_left <= 2 and (self._waiting or not rows.may_end):
            return None
        reserved = rows.pages_for_forks(2)
        if reserved and sum(reserved) > self._cache.available:
            return None
        return Step(
            self._running.rows.decodes(),
            groups=groups,
            beams=rows.most_rows,
            reserved=reserved,
            expired=self._waiting.expire(now),
        )
