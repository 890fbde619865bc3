"""What one sequence brings to the choice of its next token: its parameters, and what is known of
its tokens so far, kept up to date token by token, so that a step costs the same at any length."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Biases = tuple[NDArray[np.int32], NDArray[np.float32]]

_FORBIDDEN = float("-inf")


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
    ) -> None:
        """`stop_token_ids` are forbidden until `min_new_tokens` are there, and allowed even where
        they are a bad word (as in Hugging Face). `seed`: any integer, of which 64 bits count."""
        self.parameters = parameters
        self.seed = (seed + 2**63) % 2**64 - 2**63
        self.new_tokens = 0
        self._stop_token_ids = tuple(stop_token_ids)
        words = {tuple(w) for w in bad_words_ids if len(w) > 1 or w[0] not in self._stop_token_ids}
        self._bad_words = sorted((word[:-1], word[-1]) for word in words if len(word) > 1)
        # In transformers' order a bias comes first and penalties then act on the sum.
        self._static = dict(parameters.logit_bias)
        self._static.update({word[0]: _FORBIDDEN for word in words if len(word) == 1})
        self._static_arrays = _arrays(self._static)

        n = parameters.no_repeat_ngram_size
        longest = max([n - 1, *(len(prefix) for prefix, _ in self._bad_words)])
        self._recent = _Recent(prompt_ids, longest) if longest > 0 else None
        self._ngrams = _NGrams(prompt_ids, n) if n > 0 else None
        self._seen: _Seen | None = None
        if parameters.repetition_penalty != 1:
            self._seen = _Seen(prompt_ids)
        elif parameters.presence_penalty or parameters.frequency_penalty:
            self._seen = _Seen(())

    def append(self, token: int) -> None:
        """The token was generated."""
        self.new_tokens += 1
        if self._ngrams:
            self._ngrams.append(token)
        if self._recent:
            self._recent.append(token)
        if self._seen:
            self._seen.append(token)

    def seen(self) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """The distinct tokens that penalties touch, and how often each was generated; None where no
        penalty is in force. Views, valid until the next `append`."""
        return self._seen.arrays() if self._seen else None

    def biases(self) -> Biases:
        """What is added to the logits of the next token: each token once, -inf where forbidden."""
        banned: list[int] = []
        if self.new_tokens < self.parameters.min_new_tokens:
            banned += self._stop_token_ids
        if self._ngrams:
            banned += self._ngrams.completions()
        if self._recent:
            last = self._recent.tokens
            banned += [
                token
                for prefix, token in self._bad_words
                if tuple(last[len(last) - len(prefix) :]) == prefix and len(prefix) <= len(last)
            ]
        if not banned:
            return self._static_arrays
        return _arrays({**self._static, **dict.fromkeys(banned, _FORBIDDEN)})


class _Recent:
    """The last tokens of prompt and answer."""

    def __init__(self, prompt_ids: Sequence[int], longest: int) -> None:
        self._longest = longest
        self.tokens = list(prompt_ids[-longest:])

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) > self._longest:
            del self.tokens[0]


class _NGrams:
    """What followed each n - 1 tokens so far."""

    def __init__(self, prompt_ids: Sequence[int], n: int) -> None:
        self._n = n
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self._prefix: tuple[int, ...] = ()
        for token in prompt_ids:
            self.append(token)

    def append(self, token: int) -> None:
        if len(self._prefix) == self._n - 1:
            self._followers.setdefault(self._prefix, set()).add(token)
        self._prefix = (*self._prefix, token)[-(self._n - 1) :] if self._n > 1 else ()

    def completions(self) -> list[int]:
        """Tokens that would complete an n-gram a second time."""
        return sorted(self._followers.get(self._prefix, ()))


class _Seen:
    """The distinct tokens and how often each was generated, packed for the kernel."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        distinct = np.unique(np.asarray(prompt_ids, np.int32))
        self._size = len(distinct)
        self._tokens = np.resize(distinct, self._size + 64)
        self._counts = np.zeros(self._size + 64, np.int32)
        self._places = {int(token): place for place, token in enumerate(distinct)}

    def append(self, token: int) -> None:
        place = self._places.setdefault(token, self._size)
        if place == self._size:
            if place == len(self._tokens):
                self._tokens = np.resize(self._tokens, 2 * place)
                self._counts = np.resize(self._counts, 2 * place)
            self._tokens[place], self._counts[place] = token, 0
            self._size += 1
        self._counts[place] += 1

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self._tokens[: self._size], self._counts[: self._size]


def _arrays(biases: Mapping[int, float]) -> Biases:
    tokens = np.fromiter(biases.keys(), np.int32, len(biases))
    return tokens, np.fromiter(biases.values(), np.float32, len(biases))
