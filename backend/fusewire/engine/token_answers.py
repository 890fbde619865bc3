"""What the tokens of a step are to the requests that they belong to."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import reduce
from operator import add

from fusewire.engine.aligner import Aligner
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.generation_errors import FORBIDDEN, NOT_FINITE
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.open_requests import OpenRequests
from fusewire.engine.request import failure
from fusewire.engine.row_owners import Owners
from fusewire.engine.sampling import Draws
from fusewire.errors import ComputeFailed, InvalidInput


class TokenAnswers:
    """Gives tokens to branches, and tells requests what there is to tell."""

    def __init__(self, requests: OpenRequests, aligner: Aligner) -> None:
        self._requests = requests
        self._aligner = aligner

    def give(
        self,
        draws: Draws,
        decodes: Owners,
        others: Sequence[tuple[Generation, Branch]],
        *,
        all_run: bool,
    ) -> None:
        """Gives each branch its next token: those of `decodes`, which may be but noted where they
        `all_run`, and the `others`, whose rows come after these."""
        count = len(decodes.all)
        decodes.most_left -= 1
        due: Sequence[int] = range(count)
        noted: Collection[int] = ()
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
                self._requests.fail(generation, failure(error))

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
        if token < 0 or (prompt_logprobs is not None and not prompt_logprobs.valid):
            forbidden = row in draws.forbidden
            at_fault = InvalidInput(*FORBIDDEN) if forbidden else ComputeFailed(NOT_FINITE)
            self._requests.fail(generation, at_fault)
            return False
        sequence.token_ids.append(token)
        if branch.quiet:
            if not branch.untold:
                branch.first_at = time.monotonic()
            branch.untold.append(draws.logprobs[row])
            return branch.asked or branch.ends(token)
        return True

    def _tell(
        self,
        generation: Generation,
        branch: Branch,
        sequence: GenerationSequence,
        draws: Draws,
        row: int,
    ) -> None:
        """Tells the token that was taken, and those before it of which nothing was told."""
        if branch.quiet:
            branch.asked = False  # before anybody hears of it, and asks again
            tokens, logprobs = sequence.token_ids[-len(branch.untold) :], branch.untold[:]
            branch.untold.clear()
            branch.continuation.pass_over(tokens[:-1], reduce(add, logprobs[:-1], 0.0))
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
            self._requests.end(generation, branch)
        generation.on_event(delta)
