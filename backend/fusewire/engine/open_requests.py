"""The requests that have not ended: whose each sequence is, and how they end."""

from __future__ import annotations

import logging
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import count

from fusewire.engine.admission import Admission
from fusewire.engine.beam_groups import BeamGroups
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.generation_errors import TOO_LATE
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.errors import DeadlineExceeded, FusewireError

_log = logging.getLogger(__name__)


class OpenRequests:
    """The open requests of one model. Every call from one thread."""

    def __init__(
        self, scheduler: GenerationScheduler, admission: Admission, beam_groups: BeamGroups
    ) -> None:
        """All three are told when a branch has ended: `beam_groups` once none is left."""
        self.owners: dict[GenerationSequence, tuple[Generation, Branch]] = {}
        self._scheduler = scheduler
        self._admission = admission
        self._beam_groups = beam_groups
        self._deadlines: list[tuple[float, int, Generation]] = []  # a heap
        self._order = count()

    def add(self, generation: Generation, sequence: GenerationSequence) -> None:
        """Adds a request, by the sequence of its first branch."""
        self.own(generation, generation.branches[0], sequence)
        if sequence.deadline is not None:
            heappush(self._deadlines, (sequence.deadline, next(self._order), generation))
            if len(self._deadlines) > 2 * len(self.owners) + 64:  # most of them ended in time
                self._deadlines = [each for each in self._deadlines if each[2].open]
                heapify(self._deadlines)

    def own(self, generation: Generation, branch: Branch, sequence: GenerationSequence) -> None:
        branch.sequence = sequence
        self.owners[sequence] = (generation, branch)

    def end(self, generation: Generation, branch: Branch) -> None:
        """Ends a branch: its slot and pages are free on return."""
        if branch.open:
            branch.open = False
            generation.open -= 1
            # One that never ran says nothing about how much others generate.
            ran = branch.sequence is not None and branch.sequence.started
            generated = branch.num_output_tokens if ran else None
            self._admission.leave(generation.place, branch.places, generated)
        if branch.sequence is not None:
            self._scheduler.finish(branch.sequence)
            del self.owners[branch.sequence]
            branch.sequence = None
            if not self.owners:
                self._beam_groups.forget()

    def fail(self, generation: Generation, error: FusewireError) -> None:
        """Ends a whole request, unless it has ended."""
        if generation.open:
            for branch in generation.branches:
                self.end(generation, branch)
            try:
                generation.on_event(copy(error))
            except Exception:  # it may be what raised before; others go on
                _log.exception("a callback failed")

    def fail_late(self, now: float) -> None:
        """Ends requests whose deadlines are over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            self.fail(heappop(self._deadlines)[2], DeadlineExceeded(TOO_LATE))

    def fail_all(self, error: FusewireError) -> None:
        for generation in {id(of): of for of, _ in self.owners.values()}.values():
            self.fail(generation, error)
