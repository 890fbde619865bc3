"""What one sequence brings to the choice of its next token: its parameters, and what is known of
its tokens so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from itertools import count
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.token_history import NGrams, RecentTokens, SeenTokens, SourceNGrams

Biases = tuple[NDArray[np.int32], NDArray[np.float32]]

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

_FORBIDDEN = float("-inf")
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
    """One sequence's part of a batch of draws."""

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt_ids: Sequence[int],
        stop_token_ids: Collection[int] = (),
        seed: int = 0,
        bad_words_ids: Sequence[Sequence[int]] = (),
        forced: Mapping[int, Sequence[int]] | None = None,
        source_ids: Sequence[int] = (),
    ) -> None:
        """`stop_token_ids` are forbidden until `min_new_tokens` are there, and allowed even where
        they are a bad word (as in Hugging Face). `seed`: any integer, of which 64 bits count.
        `forced`: new tokens that no logits decide, by how many there are before them; one of each
        list, in ascending order, as likely as the others.
        `source_ids`: what the encoder of an encoder-decoder model reads."""
        self.parameters = parameters
        self.draw = _draw(parameters)
        self.logprobs = parameters.logprobs  # of so many likeliest tokens; None: of no token
        self.seed = _in_64_bits(seed)
        self.new_tokens = 0
        self.forced = forced or {}
        self._stop_token_ids = tuple(stop_token_ids)
        words = {tuple(w) for w in bad_words_ids if len(w) > 1 or w[0] not in self._stop_token_ids}
        self._bad_words = sorted((word[:-1], word[-1]) for word in words if len(word) > 1)
        # In transformers' order a bias comes first and penalties then act on the sum.
        self._static = dict(parameters.logit_bias)
        self._static.update({word[0]: _FORBIDDEN for word in words if len(word) == 1})
        self._static.update(dict.fromkeys(parameters.suppress_tokens, _FORBIDDEN))
        self._static_arrays = _arrays(self._static)
        self._begin_suppressed = parameters.begin_suppress_tokens
        self._begin = next(place for place in count() if place not in self.forced)

        n = parameters.no_repeat_ngram_size
        longest = max((len(prefix) for prefix, _ in self._bad_words), default=0)
        self._recent = RecentTokens(prompt_ids, longest) if longest > 0 else None
        self._ngrams = NGrams(prompt_ids, n) if n > 0 else None
        n = parameters.encoder_no_repeat_ngram_size
        self._source_ngrams = SourceNGrams(source_ids, prompt_ids, n) if n > 0 else None
        self._seen: SeenTokens | None = None
        if parameters.repetition_penalty != 1:
            self._seen = SeenTokens(prompt_ids)
        elif parameters.presence_penalty or parameters.frequency_penalty:
            self._seen = SeenTokens(())
        # Whether there may be biases, bans or penalties.
        self.changes_logits = bool(
            self._static or parameters.min_new_tokens or self._begin_suppressed or self.has_history
        )

    def fork(self, seed: int) -> SamplingState:
        """Another sequence with the same prompt, before either has a new token."""
        fork = copy(self)
        fork.seed = _in_64_bits(seed)
        fork._recent = self._recent and self._recent.fork()
        fork._ngrams = self._ngrams and self._ngrams.fork()
        fork._source_ngrams = self._source_ngrams and self._source_ngrams.fork()
        fork._seen = self._seen and self._seen.fork()
        return fork

    @property
    def has_history(self) -> bool:
        """Whether it matters which tokens were generated, and not only how many."""
        return bool(self._recent or self._ngrams or self._source_ngrams or self._seen)

    def branch(self) -> SamplingState:
        """Another sequence that goes on from the same tokens, the new ones included."""
        branch = copy(self)
        branch._recent = self._recent and self._recent.fork()
        branch._ngrams = self._ngrams and self._ngrams.branch()
        branch._source_ngrams = self._source_ngrams and self._source_ngrams.fork()
        branch._seen = self._seen and self._seen.branch()
        return branch

    def append(self, token: int) -> None:
        """The token was generated."""
        self.new_tokens += 1
        if self._ngrams:
            self._ngrams.append(token)
        if self._source_ngrams:
            self._source_ngrams.append(token)
        if self._recent:
            self._recent.append(token)
        if self._seen:
            self._seen.append(token)

    def forced_token(self) -> int | None:
        """The next one, where no logits decide it."""
        tokens = self.forced.get(self.new_tokens)
        if tokens is None:
            return None
        if self.parameters.greedy or len(tokens) == 1:
            return tokens[0]
        return Random(f"{self.seed} {self.new_tokens}").choice(tokens)

    def seen(self) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """The distinct tokens that penalties touch, and how often each was generated; None where no
        penalty is in force. Views, valid until the next `append`."""
        return self._seen.arrays() if self._seen else None

    def biases(self) -> Biases:
        """What is added to the logits of the next token: each token once, -inf where forbidden."""
        banned: list[int] = []
        if self.new_tokens < self.parameters.min_new_tokens:
            banned += self._stop_token_ids
        if self.new_tokens == self._begin:
            banned += self._begin_suppressed
        if self._ngrams:
            banned += self._ngrams.completions()
        if self._source_ngrams:
            banned += self._source_ngrams.completions()
        if self._recent:
            banned += [t for prefix, t in self._bad_words if self._recent.end_with(prefix)]
        if not banned:
            return self._static_arrays
        return _arrays({**self._static, **dict.fromkeys(banned, _FORBIDDEN)})


def _in_64_bits(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _draw(parameters: SamplingParameters) -> bytes:
    """One of DRAW."""
    temperature = 0.0 if parameters.greedy else parameters.temperature
    top_k = min(parameters.top_k, _MOST_TOP_K)
    others = parameters.top_p, parameters.min_p, parameters.typical_p
    return np.array((temperature, top_k, *others), DRAW).tobytes()


def _arrays(biases: Mapping[int, float]) -> Biases:
    tokens = np.fromiter(biases.keys(), np.int32, len(biases))
    return tokens, np.fromiter(biases.values(), np.float32, len(biases))
