"""The step after the one whose tokens are being read.

A GPU would wait while the host reads tokens, tells them and prepares the next step. Where sequences
go on with one token each, the next step needs of these tokens nothing but to have them on the
device, where they are: positions, pages and random counters are known. So it is given to the device
first and runs meanwhile, with chunks of the prompts that go on or begin. A sequence that ends by a
token that is read later has a row in it that nobody reads: what the row stores lies after the
sequence's tokens, in pages that others get only by work that is given to the device later. The step
after that has the rows of the others alone, whose tokens the device gathers, as it does those of
sequences whose prompts are complete. One that reaches its maximum length has no such row, and its
slot is free at once; where all do there is no next step.

The same holds for searches that the model alone decides, but for biases and bans that are the same
in every step: the device forks their beams by itself (`beams_ahead`).

All else (steps that encode a source, fork a sequence or score a prompt, beams beside others,
penalties and bans that look back at tokens, the step after a token that is forced, pages that are
short, searches where all are or others wait for their slots) waits for the tokens, as every step
does on a CPU, which computes in the thread that would read them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from fusewire.engine.beam_groups import BeamGroups
from fusewire.engine.beams_ahead import FoundBeams
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_step import Step
from fusewire.engine.packing import pack_ahead
from fusewire.engine.row_owners import Owners
from fusewire.engine.sampling import PendingDraws, Sampler
from fusewire.engine.sampling_rows import SamplingRows

if TYPE_CHECKING:
    from fusewire.kernels import Tensor
    from fusewire.models.decoder import DecoderModel
    from fusewire.models.decoder_cache import DecoderCache

_log = logging.getLogger(__name__)
# Seconds after a step that could not be begun in which every step waits for the tokens before it.
_PAUSE_S = 60.0


@dataclass(frozen=True, eq=False)
class Ahead:
    """A step that the device was given."""

    step: Step
    draws: PendingDraws | FoundBeams
    sampling: SamplingRows | None = None  # of the draws
    # Whose prompts the step completes: their draws come after those of its decodes.
    others: Sequence[tuple[Generation, Branch]] = ()


class LookAhead:
    """Gives the device at most one step ahead, for one model with one cache."""

    def __init__(
        self,
        model: DecoderModel,
        cache: DecoderCache,
        scheduler: GenerationScheduler,
        sampler: Sampler,
        beam_groups: BeamGroups,
    ) -> None:
        self._model = model
        self._cache = cache
        self._scheduler = scheduler
        self._sampler = sampler
        self._beam_groups = beam_groups
        self._ahead: Ahead | None = None
        self._paused_until = -inf  # on the clock of deadlines

    def begin(
        self,
        step: Step,
        draws: PendingDraws,
        sampling: SamplingRows,
        drawn: Sequence[GenerationSequence | None],
        owners: Mapping[GenerationSequence, tuple[Generation, Branch]],
        now: float,
    ) -> Step:
        """Gives the device the step after one that is `done`, where it can be known; the `draws` of
        that one, for the sequences `drawn` (None: has ended since), are not read yet. Returns the
        step, or an empty one."""
        before = step.decodes.rows
        if now < self._paused_until or not sampling.draws_ahead:
            return Step()
        step = self._scheduler.plan_ahead(step, now) or Step()
        if step.empty:
            return step
        rows, tokens = step.decodes.rows, draws.tokens
        try:
            if rows is not before:  # some have left since, or joined
                rows.owners = Owners([owners[each] for each in rows.sequences], unread=1)
            if rows is not before or len(drawn) > len(rows.sequences):
                place = {each: row for row, each in enumerate(drawn)}
                tokens = self._sampler.some(tokens, [place[each] for each in rows.sequences])
            self._ahead = self._begun(step, tokens, owners)
        except Exception as error:
            self._pause(error, now)
        return step

    def _begun(
        self,
        step: Step,
        tokens: Tensor,
        owners: Mapping[GenerationSequence, tuple[Generation, Branch]],
    ) -> Ahead:
        """Gives the device a step whose decodes have these tokens."""
        rows = step.decodes.rows
        batch, drawn, _ = pack_ahead(step, tokens)
        logits = self._model.step(batch, self._cache)
        others = [owners[each] for each in drawn[len(rows.sequences) :]]
        sampling, unread = rows.owners.sampling, np.ones(len(drawn), np.int64)
        if others:
            unread[len(rows.sequences) :] = 0
            sampling = sampling.followed_by(SamplingRows([each.sampling for _, each in others]))
        return Ahead(step, self._sampler.begin(logits, sampling, unread), sampling, others)

    def begin_beams(self, step: Step, found: FoundBeams, now: float) -> Step:
        """As `begin`, after a step of groups alone, of which what it `found` is not read yet."""
        if now < self._paused_until or not self._beam_groups.forks_alone(found):
            return Step()
        step = self._scheduler.plan_ahead(step, now) or Step()
        if step.empty:
            return step
        try:
            ahead = self._beam_groups.begin_ahead(found, step.reserved)
            self._ahead = Ahead(step, ahead) if ahead else None
        except Exception as error:
            self._pause(error, now)
        return step

    def _pause(self, error: Exception, now: float) -> None:
        """Looks ahead no more for a while. No request ends by the error: the step is planned again
        after the tokens before it, which may be at fault (a CPU refuses the id of a row that has
        none), and ends whom it concerns if it fails then. Nor is each of the next steps tried
        twice."""
        self._paused_until = now + _PAUSE_S
        _log.warning(
            "a step could not be begun ahead of the tokens before it, got %s: %s; it is computed "
            "behind them, and so is each step for %g s",
            type(error).__name__,
            error,
            _PAUSE_S,
            exc_info=error,
        )

    def take(self) -> Ahead | None:
        """The step whose turn it is; None where it is still to be planned."""
        ahead, self._ahead = self._ahead, None
        return ahead

    def drop(self) -> None:
        """Forgets the step: it is not the one that comes."""
        self._ahead = None

    def drop_ended(self) -> None:
        """Forgets a step all of whose sequences have ended: they are all that ran."""
        if not self._scheduler.running:
            self._ahead = None
