"""The results of `LLM`, with vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from fusewire.engine.continuation import Alignment, Delta, FinishReason
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.errors import FusewireError
from fusewire.generation.speech import Segment


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of a token at its position. `rank` is 1 for the most likely token of the
    vocabulary, and None if beam search chose the token."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One text generated for a prompt.

    `token_ids` include the token that ended the text, `text` does not. `finish_reason`: `stop` at
    an end-of-sequence token, a stop token or a stop string, `length` at max_new_tokens or at the
    model's maximum length. `logprobs`: of each token, by token id, if requested. `score`: with beam
    search, cumulative_logprob / number of tokens ** length_penalty. `alignment`: with the source,
    if requested. `segments`: for audio, what was said when.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: FinishReason | None
    logprobs: list[dict[int, Logprob]] | None = None
    score: float | None = None
    alignment: Alignment | None = None
    segments: list[Segment] | None = None

    @staticmethod
    def of(
        index: int, deltas: Sequence[Delta], spell: Callable[[int], str] | None
    ) -> CompletionOutput:
        """Combines all deltas of one text. `spell` returns a token's text; None if
        log-probabilities were not requested."""
        last = deltas[-1]
        said = [delta.segments for delta in deltas if delta.segments is not None]
        return CompletionOutput(
            index,
            "".join([delta.text for delta in deltas]),
            [token for delta in deltas for token in delta.token_ids],
            last.cumulative_logprob,
            last.finish_reason,
            [_logprobs(delta, spell) for delta in deltas if delta.token is not None]
            if spell
            else None,
            last.score,
            last.alignment,
            [*chain(*said)] if said else None,
        )


def _logprobs(delta: Delta, spell: Callable[[int], str]) -> dict[int, Logprob]:
    assert delta.token is not None
    found = {delta.token: Logprob(delta.logprob, delta.rank or None, spell(delta.token))}
    for rank, (token, logprob) in enumerate(delta.top_logprobs, 1):
        found[token] = Logprob(logprob, rank, spell(token))
    return found


def prompt_logprobs(
    scored: PromptLogprobs, spell: Callable[[int], str]
) -> list[dict[int, Logprob] | None]:
    """Returns log-probabilities in the format of RequestOutput."""
    return [
        None
        if entry is None
        else {token: Logprob(*found, spell(token)) for token, found in entry.items()}
        for entry in scored
    ]


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of tokens of a prompt, and of all texts generated for it."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and the `n` texts that were generated for it. `prompt` is None if it was given as
    ids or messages. `num_cached_tokens` of its tokens came from the prefix cache.
    `prompt_logprobs`: of each of its tokens, by token id, if requested; the entry of the first
    token is None. For audio the prompt is the encoder's output, and `language` the spoken
    language."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    language: str | None = None

    @property
    def usage(self) -> Usage:
        tokens = sum(len(output.token_ids) for output in self.outputs)
        return Usage(len(self.prompt_token_ids), tokens)


class IncompleteOutputs(FusewireError):
    """Some prompts failed while they were computed, or missed their deadline; the others succeeded.

    `outputs`: a RequestOutput for each prompt, None for those that failed. `errors`: the errors of
    these, by index.
    """

    def __init__(
        self,
        outputs: list[RequestOutput | None],
        errors: dict[int, FusewireError],
        field: str = "prompts",
    ) -> None:
        """`field`: the name of the list of prompts in the message."""
        index, first = min(errors.items())
        super().__init__(
            f"{field}[{index}]: {first} ({len(errors)} of {len(outputs)} failed; "
            "`outputs` of this error has the others)"
        )
        self.outputs = outputs
        self.errors = errors
