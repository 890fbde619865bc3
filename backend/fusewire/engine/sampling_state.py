"""What one sequence brings to the choice of its next token: its parameters, and what is known of
its tokens so far (`kernels.TokenHistories`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from itertools import count
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusewire import kernels
from fusewire.engine.token_masks import TokenMask

# How a row is drawn: columns of `kernels.sample`, of 4 bytes each.
DRAW = np.dtype(
    [
        ("temperature", np.float32),  # 0: greedy
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("typical_p", np.float32),
    ]
)

_MOST_TOP_K = np.iinfo(np.int32).max  # far more than there are tokens


class SamplingParameters(Protocol):
    """The fields of `GenerationParameters` that choose tokens, under the names that Hugging Face
    and vLLM give them."""

    @property
    def greedy(self) -> bool: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def typical_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def no_repeat_ngram_size(self) -> int: ...
    @property
    def encoder_no_repeat_ngram_size(self) -> int: ...
    @property
    def encoder_repetition_penalty(self) -> float: ...
    @property
    def suppress_tokens(self) -> Sequence[int]: ...
    @property
    def begin_suppress_tokens(self) -> Sequence[int]: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def min_new_tokens(self) -> int: ...
    @property
    def logprobs(self) -> int | None: ...


class SamplingState:
    """One sequence's part of a batch of draws, or that of the beams of a search."""

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt_ids: Sequence[int],
        stop_token_ids: Collection[int] = (),
        seed: int = 0,
        bad_words_ids: Sequence[Sequence[int]] = (),
        forced: Mapping[int, Sequence[int]] | None = None,
        source_ids: Sequence[int] = (),
        mask: TokenMask | None = None,
    ) -> None:
        """`stop_token_ids` are forbidden until `min_new_tokens` are there, and allowed even where
        they are a bad word (as in Hugging Face). `seed`: any integer, of which 64 bits count.
        `forced`: new tokens that no logits decide, by how many there are before them; one of each
        list, in ascending order, as likely as the others.
        `source_ids`: what the encoder of an encoder-decoder model reads. `mask`: what else is
        forbidden, behind all of that."""
        self.parameters = parameters
        self.draw = _draw(parameters)
        self.penalties = _penalties(parameters)
        self.logprobs = parameters.logprobs  # of so many likeliest tokens; None: of no token
        self.seed = _in_64_bits(seed)
        self.new_tokens = 0
        self.forced = forced or {}
        stops = set(stop_token_ids)
        words = {tuple(word) for word in bad_words_ids if len(word) > 1 or word[0] not in stops}
        forbidden = {word[0] for word in words if len(word) == 1}.union(parameters.suppress_tokens)
        # In transformers' order a bias comes first and penalties then act on the sum.
        biases = {**parameters.logit_bias, **dict.fromkeys(forbidden, float("-inf"))}
        counts_prompt = parameters.repetition_penalty != 1
        looks_back = {
            "bad_words": sorted(word for word in words if len(word) > 1),
            "no_repeat_ngram_size": parameters.no_repeat_ngram_size,
            "encoder_no_repeat_ngram_size": parameters.encoder_no_repeat_ngram_size,
            "counts_prompt": counts_prompt,
            "counts_tokens": bool(parameters.presence_penalty or parameters.frequency_penalty),
        }
        begin_suppressed = parameters.begin_suppress_tokens
        # Those that encoder_repetition_penalty concerns, each once.
        liked = source_ids if parameters.encoder_repetition_penalty != 1 else ()
        self.source_tokens = np.unique(np.array(liked, np.int32))
        self.mask = mask
        # Whether there may be biases, bans or penalties; and whether any depends on the tokens so
        # far, or all on how many these are.
        self.looks_back = any(looks_back.values()) or mask is not None
        self.changes_logits = bool(
            biases or parameters.min_new_tokens or begin_suppressed or len(liked) or self.looks_back
        )
        # Whether there is nothing but biases that are the same at every place, behind any tokens.
        bounded = parameters.min_new_tokens or begin_suppressed
        self.fixed = not (self.looks_back or bounded or len(liked))
        begin = next(place for place in count() if place not in self.forced)
        # Places of new tokens, by how many there are before them, behind which nothing can be drawn
        # until they are read: a forced token is the host's to give, and bans of some places begin
        # and end there.
        self._read_first = {*self.forced}
        if parameters.min_new_tokens:
            self._read_first.add(parameters.min_new_tokens - 1)
        if begin_suppressed:
            self._read_first |= {begin - 1, begin}
        self.history = kernels.TokenHistories(
            prompt_ids=prompt_ids if any(looks_back.values()) else (),
            source_ids=source_ids if parameters.encoder_no_repeat_ngram_size else (),
            biases=biases,
            stop_token_ids=sorted(stops),
            min_new_tokens=parameters.min_new_tokens,
            begin_suppress_tokens=begin_suppressed,
            begin=begin,
            **looks_back,
        )

    def fork(self, seed: int) -> SamplingState:
        """Another sequence that goes on from the same tokens."""
        fork = copy(self)
        fork.seed = _in_64_bits(seed)
        fork.history = self.history.fork()
        fork.mask = None if self.mask is None else self.mask.fork()
        return fork

    def advance(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        """Beams go on: row i of the history becomes row parents[i] with tokens[i] behind it."""
        self.new_tokens += 1
        if self.changes_logits:
            self.history.advance(parents, tokens)
        if self.mask is not None:
            self.mask.advance(parents, tokens)

    def spread(self, beams: int) -> None:
        """Biases that are `fixed` are from here on those of so many beams, whichever they are."""
        if self.history.rows != beams:
            self.history.advance(np.zeros(beams, np.int32), np.zeros(beams, np.int64))

    @property
    def always_draws_ahead(self) -> bool:
        """Whether `draws_ahead` at every place."""
        return not (self.looks_back or self._read_first)

    @property
    def draws_ahead(self) -> bool:
        """Whether the draw behind the next token, which nobody has read, asks no more of the tokens
        before it than how many there are."""
        return not self.looks_back and self.new_tokens not in self._read_first

    def forced_token(self) -> int | None:
        """The next one, where no logits decide it."""
        tokens = self.forced.get(self.new_tokens)
        if tokens is None:
            return None
        if self.parameters.greedy or len(tokens) == 1:
            return tokens[0]
        return Random(f"{self.seed} {self.new_tokens}").choice(tokens)


def _in_64_bits(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _penalties(parameters: SamplingParameters) -> bytes:
    """For repetition, presence and frequency, float32."""
    of_kinds = parameters.presence_penalty, parameters.frequency_penalty
    return np.array((parameters.repetition_penalty, *of_kinds), np.float32).tobytes()


def _draw(parameters: SamplingParameters) -> bytes:
    """One of DRAW."""
    temperature = 0.0 if parameters.greedy else parameters.temperature
    top_k = min(parameters.top_k, _MOST_TOP_K)
    others = parameters.top_p, parameters.min_p, parameters.typical_p
    return np.array((temperature, top_k, *others), DRAW).tobytes()
