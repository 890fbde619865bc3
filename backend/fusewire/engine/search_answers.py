"""What a beam search has found, as deltas of a request's branches."""

from __future__ import annotations

from fusewire.engine.beam_group import BeamGroup
from fusewire.engine.branches import Branch, Generation
from fusewire.engine.continuation import Delta
from fusewire.engine.generation_errors import FORBIDDEN, NOT_FINITE
from fusewire.errors import ComputeFailed, InvalidInput


def deltas_of_search(generation: Generation, group: BeamGroup) -> list[Delta]:
    """Of a search that is done: what is not told yet of each text, whose last delta has its score.
    ComputeFailed or InvalidInput where it has found none, or too few."""
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
