"""The step after one whose tokens nobody has read: pure policy, no kernels.

All sequences of the step are taken to go on, and what is computed of one that ended is in vain. A
step is planned so only where it does not depend on the tokens: it has the sequences of the one
before and no others, with pages for all of them. Where there is none, nothing has changed.
"""

from __future__ import annotations

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
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._max_batch_tokens = max_batch_tokens

    def plan(self, step: Step, now: float) -> Step | None:
        """The step after one that is done (GenerationScheduler); None where others are to run too,
        or pages are short."""
        running = self._running
        if not running.rows.are_of(step.decodes.rows):
            return None
        # Those whose prompt is stored go on with the token that nobody has read.
        if any([each.left for each in running.prompts]) or (step.prompts and running.groups):
            return None
        budget = self._max_batch_tokens - len(step.decodes.rows.sequences) - running.beams
        if (waiting := self._waiting.first) and not self._admission.must_wait(waiting, budget):
            return None
        if running.groups:
            return self._plan_groups(step, now)
        if running.wanted_pages(running.prompts, self._cache) > self._cache.available:
            return None
        for sequence in running.prompts:
            running.rows.join(sequence)
        running.prompts.clear()
        copies = running.rows.grow(self._cache)
        assert not copies  # only a fork shares a page that is not full, and its step is planned
        return Step(running.rows.decodes(), expired=self._waiting.expire(now))

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
