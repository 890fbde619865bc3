"""What beam searches have found, as deltas of their requests' branches."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.engine.aligner import Aligner
from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.continuation import Delta
from fusewire.engine.generation_errors import FORBIDDEN, NOT_FINITE
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.open_requests import OpenRequests
from fusewire.engine.request import failure
from fusewire.errors import ComputeFailed, FusewireError, InvalidInput


class SearchAnswers:
    """Tells requests what is certain of their texts, and ends those whose search is done."""

    def __init__(self, requests: OpenRequests, aligner: Aligner) -> None:
        self._requests = requests
        self._aligner = aligner
        # What the last step made certain of searches that go on: told while the next one runs.
        self._settled: list[tuple[Generation, Sequence[tuple[int, float]]]] = []
        # Requests whose callbacks raised at that: they end after the step, which has rows of
        # theirs.
        self._broken: dict[Generation, FusewireError] = {}

    def tell(
        self, advanced: Sequence[tuple[GenerationSequence, BeamGroup, Sequence[tuple[int, float]]]]
    ) -> None:
        """Takes searches that a step took on. One whose sequence has no rows is done, and ends; for
        the others the step made tokens certain, with these log-probabilities."""
        for sequence, group, settled in advanced:
            if sequence not in self._requests.owners:  # it has ended since
                continue
            generation = self._requests.owners[sequence][0]
            if generation in self._broken:
                continue
            try:
                if sequence.rows is None:
                    self._end(generation, group)
                else:
                    self._settled.append((generation, settled))
            except Exception as error:
                self._requests.fail(generation, failure(error))

    def tell_settled(self) -> None:
        """Tells the tokens that the last step made certain, while the device computes the next."""
        late, self._settled = self._settled, []
        for generation, settled in late:
            if not generation.open:  # cancelled meanwhile
                continue
            try:
                self._tell(generation, settled)
            except Exception as error:
                self._broken[generation] = failure(error)

    def _tell(self, generation: Generation, settled: Sequence[tuple[int, float]]) -> None:
        for token, logprob in settled:
            for branch in generation.branches:
                generation.on_event(delta_of_beams(generation, branch, token, logprob))

    def _end(self, generation: Generation, group: BeamGroup) -> None:
        deltas = deltas_of_search(generation, group)
        if generation.decoder_ids:
            texts = [found.tokens.tolist() for found in group.search.hypotheses()]
            self._aligner.align(generation, texts, deltas)
        *first, last = deltas
        for delta in first:  # a callback that raises gets its error as the last event
            generation.on_event(delta)
        for branch in generation.branches:
            self._requests.end(generation, branch)
        generation.on_event(last)

    def fail_broken(self) -> None:
        """Ends requests whose callbacks raised in `tell_settled`. Called after a step."""
        broken, self._broken = self._broken, {}
        for generation, error in broken.items():
            self._requests.fail(generation, error)


def deltas_of_search(generation: Generation, group: BeamGroup) -> list[Delta]:
    """The deltas of a search that is done: what is not told yet of each text, whose last delta has
    its score. ComputeFailed or InvalidInput where it has found none, or too few."""
    hypotheses = group.search.hypotheses(len(generation.branches))
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
        tokens: list[int] = found.token_ids
        if branch.quiet:
            last = tokens.pop()
            branch.continuation.pass_over(tokens, found.sum_before_last)
            deltas.append(delta_of_beams(generation, branch, last, found.last_log_prob))
            deltas[-1].score = found.score
            continue
        settled = branch.continuation.num_output_tokens
        tokens, log_probs = tokens[settled:], found.log_probs[settled:].tolist()
        for token, logprob in zip(tokens, log_probs, strict=True):
            deltas.append(delta_of_beams(generation, branch, token, logprob))
        deltas[-1].score = found.score
    return deltas


def delta_of_beams(generation: Generation, branch: Branch, token: int, logprob: float) -> Delta:
    """The next token of one of a search's texts."""
    sequence = generation.branches[0].sequence
    assert sequence is not None
    delta = branch.continuation.accept(token, logprob)
    delta.num_cached_tokens = sequence.cached_tokens or 0
    return delta
