"""What parameters say of the choice of tokens, found once for all sequences that have the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import numpy as np

from fusewire import kernels

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


class SamplingRules:
    """The rules of one request's parameters, or of many that have the same. Nothing here ever
    changes."""

    def __init__(
        self,
        parameters: SamplingParameters,
        stop_token_ids: Collection[int] = (),
        bad_words_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        """`stop_token_ids` are forbidden until `min_new_tokens` are there, and allowed even where
        they are a bad word (as in Hugging Face)."""
        self.parameters = parameters
        self.draw = _draw(parameters)
        self.penalties = _penalties(parameters)
        stops = set(stop_token_ids)
        words = {tuple(word) for word in bad_words_ids if len(word) > 1 or word[0] not in stops}
        forbidden = {word[0] for word in words if len(word) == 1}.union(parameters.suppress_tokens)
        # In transformers' order a bias comes first and penalties then act on the sum.
        biases = {**parameters.logit_bias, **dict.fromkeys(forbidden, float("-inf"))}
        looks_back = {
            "bad_words": sorted(word for word in words if len(word) > 1),
            "no_repeat_ngram_size": parameters.no_repeat_ngram_size,
            "encoder_no_repeat_ngram_size": parameters.encoder_no_repeat_ngram_size,
            "counts_prompt": parameters.repetition_penalty != 1,
            "counts_tokens": bool(parameters.presence_penalty or parameters.frequency_penalty),
        }
        begin_suppressed = parameters.begin_suppress_tokens
        # Whether there may be biases, bans or penalties; and whether any depends on the tokens so
        # far, or all on how many these are.
        self.looks_back = any(looks_back.values())
        self._bounded = bool(parameters.min_new_tokens or begin_suppressed)
        self.changes_logits = bool(biases) or self._bounded or self.looks_back
        # Whether there is nothing but biases, the same at every place, after any tokens.
        self.fixed = not (self.looks_back or self._bounded)
        self._of_histories: dict[str, Any] = {
            "biases": biases,
            "stop_token_ids": sorted(stops),
            "min_new_tokens": parameters.min_new_tokens,
            "begin_suppress_tokens": begin_suppressed,
            **looks_back,
        }
        # The history of all sequences, where it depends neither on their tokens nor on where they
        # begin.
        self._history = None
        if not (self.looks_back or begin_suppressed):
            self._history = kernels.TokenHistories(**self._of_histories)

    def history(
        self,
        prompt_ids: Sequence[int],
        source_ids: Sequence[int],
        forced: Mapping[int, Sequence[int]],
    ) -> kernels.TokenHistories:
        """The token histories of a new sequence."""
        if self._history is not None:
            return self._history.fork()
        return kernels.TokenHistories(
            prompt_ids=prompt_ids if self.looks_back else (),
            source_ids=source_ids if self.parameters.encoder_no_repeat_ngram_size else (),
            begin=_begin(forced),
            **self._of_histories,
        )

    def read_first(self, forced: Mapping[int, Sequence[int]]) -> Collection[int]:
        """Places of new tokens, by how many there are before them, after which nothing can be drawn
        until they are read: a forced token is the host's to give, and bans of some places begin and
        end there."""
        if not self._bounded:
            return forced
        places = {*forced}
        if self.parameters.min_new_tokens:
            places.add(self.parameters.min_new_tokens - 1)
        if self.parameters.begin_suppress_tokens:
            begin = _begin(forced)
            places |= {begin - 1, begin}
        return places


def _begin(forced: Mapping[int, Sequence[int]]) -> int:
    """The place of the first token that is not forced."""
    return next(place for place in count() if place not in forced)


def _penalties(parameters: SamplingParameters) -> bytes:
    """Penalties for repetition, presence and frequency, float32."""
    of_kinds = parameters.presence_penalty, parameters.frequency_penalty
    return np.array((parameters.repetition_penalty, *of_kinds), np.float32).tobytes()


def _draw(parameters: SamplingParameters) -> bytes:
    """How a row is drawn, as one DRAW."""
    temperature = 0.0 if parameters.greedy else parameters.temperature
    top_k = min(parameters.top_k, _MOST_TOP_K)
    others = parameters.top_p, parameters.min_p, parameters.typical_p
    return np.array((temperature, top_k, *others), DRAW).tobytes()
