"""One continuation of a prompt: its tokens become text until something ends it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.generation.speech import DecodedWindow, Segment
from fusewire.generation.stop_strings import StopMatcher
from fusewire.text.detokenizer import TextStream

FinishReason = Literal["stop", "length"]
# The likeliest tokens at one place with their log-probabilities, likeliest first.
TopLogprobs = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Alignment:
    """How much each of a text's tokens attends to each token of the source, where it is chosen:
    `weights` [tokens, source tokens], rows that sum to 1."""

    source_ids: Sequence[int]
    token_ids: Sequence[int]
    weights: NDArray[np.float32]


@dataclass(slots=True)
class Delta:
    """What a step added to continuation `index` of a request; `text` may be empty. Where no tokens
    are streamed, those `before` came with earlier steps, the first of all at `first_at`, by
    time.monotonic().

    `token` is None where a continuation ended without one (none was asked for, or nothing is said).
    `rank` is the token's in the vocabulary, 1 for the likeliest, where `logprobs` were asked for
    without beams; else 0. `num_output_tokens` and `cumulative_logprob` count from the beginning;
    `num_cached_tokens`: tokens of the prompt whose keys and values came from the prefix cache.
    `prompt_logprobs`, where they were asked for, come with the first Delta of a request. `score`,
    with the last one of a text that beam search found: cumulative_logprob / num_output_tokens **
    length_penalty. `alignment`, with the last one of a text, where it was asked for.

    For a model of speech: `language`, where it knows several; `segments`, what is said when, with
    the last one of a text, or those that it adds to the text of audio that is longer than the
    model hears at once; `token_ends`, with the last one of a text, where words are timed: when each
    of its tokens has been said, in seconds after the beginning of what was heard; `temperature`:
    that at which a window was decoded which may be decoded again; `no_speech_prob`: the probability
    that nothing is said in it, with the last one of its text, where that was looked for.
    """

    index: int
    text: str
    token: int | None
    logprob: float
    top_logprobs: TopLogprobs
    cumulative_logprob: float
    num_output_tokens: int
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    rank: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    score: float | None = None
    alignment: Alignment | None = None
    before: Sequence[int] = ()
    first_at: float | None = field(default=None, compare=False)
    language: str | None = None
    segments: Sequence[Segment] | None = None
    token_ends: Sequence[float] | None = None
    temperature: float | None = None
    no_speech_prob: float | None = None

    @property
    def token_ids(self) -> list[int]:
        """All tokens that it adds."""
        return [*self.before] if self.token is None else [*self.before, self.token]

    def decoded_window(self, seek: int) -> DecodedWindow:
        """The window from frame `seek` of the audio on, whose text ends with this delta."""
        mean = self.cumulative_logprob / max(1, self.num_output_tokens)
        return DecodedWindow(seek, mean, self.temperature, self.no_speech_prob)


class Continuation:
    """Takes sampled tokens; `accept` says what each adds, and whether it was the last."""

    def __init__(
        self,
        index: int,
        text: TextStream,
        prefix: Sequence[int],
        stop: StopMatcher,
        stop_tokens: Collection[int],
        min_new_tokens: int,
        max_new_tokens: int,
        *,
        forced_end: bool = False,
    ) -> None:
        """`prefix`: tokens that the text begins with and that were not generated; no stop string
        is looked for in them. `stop_tokens` end the text and are no part of it. Stop strings count
        from the end of `min_new_tokens` on. `forced_end`: the last of `max_new_tokens` is forced,
        so that it is the length that ends the text, whichever token it is."""
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.cumulative_logprob = 0.0
        self.num_output_tokens = 0
        self._text = text
        self._ahead = text.steps(prefix)  # text that the next delta begins with
        self._before: Sequence[int] = ()
        self._stop = stop
        self.stop_tokens = stop_tokens
        self._min_new_tokens = min_new_tokens
        self.max_new_tokens = max_new_tokens
        self._forced_end = forced_end

    def ends(self, token: int, place: int) -> bool:
        """Whether the token ends it where it is the `place`th, from 1 on; stop strings aside."""
        return token in self.stop_tokens or place >= self.max_new_tokens

    def pass_over(self, tokens: Sequence[int], logprob: float) -> None:
        """Takes tokens that do not end it, which are told with the next one. Their
        log-probabilities add up to `logprob`. There are no stop strings."""
        self.num_output_tokens += len(tokens)
        self.cumulative_logprob += logprob
        self._ahead += self._text.steps(tokens)
        self._before = tokens

    def accept(
        self, token: int, logprob: float, rank: int = 0, top_logprobs: TopLogprobs = ()
    ) -> Delta:
        if not self.max_new_tokens:
            self.finish_reason = "length"
            return self._delta("", None, 0.0, 0, ())
        self.num_output_tokens += 1
        self.cumulative_logprob += logprob
        if token in self.stop_tokens:
            forced = self._forced_end and self.num_output_tokens == self.max_new_tokens
            self.finish_reason = "length" if forced else "stop"
            text = self._let_out(self._text.flush())
        else:
            text = self._let_out(self._text.step(token))
            if self._stop.matched is None and self.num_output_tokens >= self.max_new_tokens:
                self.finish_reason = "length"
                text += self._let_out(self._text.flush())
        if self._stop.matched is not None:
            self.finish_reason = "stop"
        elif self.finish_reason is not None:
            text += self._stop.flush()
        return self._delta(text, token, logprob, rank, top_logprobs)

    def _let_out(self, text: str) -> str:
        if not self._stop.strings:
            return text
        if self.num_output_tokens < self._min_new_tokens:
            return self._stop.pass_through(text)
        return self._stop.feed(text)

    def _delta(
        self, text: str, token: int | None, logprob: float, rank: int, top_logprobs: TopLogprobs
    ) -> Delta:
        if self._ahead:
            text, self._ahead = self._ahead + text, ""
        before, self._before = self._before, ()
        return Delta(
            self.index,
            text,
            token,
            logprob,
            top_logprobs,
            self.cumulative_logprob,
            self.num_output_tokens,
            self.finish_reason,
            rank=rank,
            before=before,
        )
