"""What is known of a sequence's tokens so far, kept up to date token by token, so that a step costs
the same at any length. What concerns the prompt is shared by all continuations of it: `fork` gives
each its own, before anything was appended."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

_TOKEN = 4  # bytes
_ROOM = np.zeros(64, np.int32)  # for new tokens


class RecentTokens:
    """The last tokens of prompt and answer."""

    def __init__(self, prompt_ids: Sequence[int], longest: int) -> None:
        self._longest = longest
        self._tokens = list(prompt_ids[-longest:])

    def fork(self) -> RecentTokens:
        return RecentTokens(self._tokens, self._longest)

    def append(self, token: int) -> None:
        self._tokens.append(token)
        if len(self._tokens) > self._longest:
            del self._tokens[0]

    def end_with(self, tokens: Sequence[int]) -> bool:
        return self._tokens[len(self._tokens) - len(tokens) :] == list(tokens)


class NGrams:
    """What followed each n - 1 tokens so far."""

    def __init__(self, prompt_ids: Sequence[int], n: int) -> None:
        self._n = n
        self._prompt = _Followers(prompt_ids[: n - 1], n - 1)
        for token in prompt_ids[n - 1 :]:
            self._prompt.append(token)
        self._end = prompt_ids[max(0, len(prompt_ids) - (n - 1)) :]
        self._answer = _Followers(self._end, n - 1)

    def fork(self) -> NGrams:
        fork = copy(self)
        fork._answer = _Followers(self._end, self._n - 1)
        return fork

    def branch(self) -> NGrams:
        """With what was appended."""
        branch = copy(self)
        branch._answer = self._answer.branch()
        return branch

    def append(self, token: int) -> None:
        self._answer.append(token)

    def completions(self) -> list[int]:
        """Tokens that would complete an n-gram a second time."""
        last = self._answer.last()
        return sorted(self._prompt.of(last) | self._answer.of(last))


class SourceNGrams:
    """What follows each n - 1 tokens of a source, which a text does not write after them."""

    def __init__(self, source_ids: Sequence[int], prompt_ids: Sequence[int], n: int) -> None:
        self._source = _Followers(source_ids[: n - 1], n - 1)
        for token in source_ids[n - 1 :]:
            self._source.append(token)
        self._end = list(prompt_ids)[max(0, len(prompt_ids) - (n - 1)) :]
        self._length = n - 1

    def fork(self) -> SourceNGrams:
        fork = copy(self)
        fork._end = self._end[:]
        return fork

    def append(self, token: int) -> None:
        self._end.append(token)
        if len(self._end) > self._length:
            del self._end[0]

    def completions(self) -> list[int]:
        """Tokens that would complete an n-gram of the source."""
        return sorted(self._source.of(np.asarray(self._end, np.int32).tobytes()))


class _Followers:
    """What followed each `length` tokens of a text, from those on with which it begins.

    Kept is where they stand first, by their hash and compared there, and never they themselves:
    memory grows with the text alone. Where two have one hash the second takes the next number.
    """

    def __init__(self, begin: Sequence[int], length: int) -> None:
        self._text = bytearray(np.asarray(begin, np.int32).tobytes())
        self._bytes = length * _TOKEN
        self._ends: dict[int, int] = {}  # hash -> where in the text the first follower stands
        self._others: dict[int, set[int]] = {}  # hash -> the followers that are not the first

    def branch(self) -> _Followers:
        branch = copy(self)
        branch._text = self._text[:]
        branch._ends = self._ends.copy()
        branch._others = {key: others.copy() for key, others in self._others.items()}
        return branch

    def append(self, token: int) -> None:
        last = self.last()
        if len(last) == self._bytes:
            key = self._find(last)
            if key not in self._ends:
                self._ends[key] = len(self._text)
            elif token != self._first(key):
                self._others.setdefault(key, set()).add(token)
        self._text += token.to_bytes(_TOKEN, "little")

    def last(self) -> bytes:
        """The text's end, of that length where it has one."""
        return bytes(self._text[max(0, len(self._text) - self._bytes) :])

    def of(self, tokens: bytes) -> set[int]:
        key = self._find(tokens)
        return {self._first(key), *self._others.get(key, ())} if key in self._ends else set()

    def _find(self, tokens: bytes) -> int:
        key = hash(tokens)
        while key in self._ends:
            end = self._ends[key]
            if self._text[end - self._bytes : end] == tokens:
                break
            key += 1
        return key

    def _first(self, key: int) -> int:
        end = self._ends[key]
        return int.from_bytes(self._text[end : end + _TOKEN], "little")


class SeenTokens:
    """The distinct tokens, the prompt's among them, and how often each was generated, packed for
    the kernel."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._begin(np.unique(np.asarray(prompt_ids, np.int32)))

    def _begin(self, prompt: NDArray[np.int32]) -> None:
        self._prompt = prompt  # sorted
        self._size = len(prompt)
        self._tokens = np.append(prompt, _ROOM)
        self._counts = np.zeros_like(self._tokens)
        self._places: dict[int, int] = {}  # of those that are not in the prompt

    def fork(self) -> SeenTokens:
        fork = copy(self)
        fork._begin(self._prompt)
        return fork

    def branch(self) -> SeenTokens:
        """With what was appended."""
        branch = copy(self)
        branch._tokens, branch._counts = self._tokens.copy(), self._counts.copy()
        branch._places = self._places.copy()
        return branch

    def append(self, token: int) -> None:
        place = int(np.searchsorted(self._prompt, token))
        if place == len(self._prompt) or self._prompt[place] != token:
            place = self._places.setdefault(token, self._size)
        if place == self._size:
            if place == len(self._tokens):
                self._tokens = np.append(self._tokens, np.zeros_like(self._tokens))
                self._counts = np.append(self._counts, np.zeros_like(self._counts))
            self._tokens[place], self._counts[place] = token, 0
            self._size += 1
        self._counts[place] += 1

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self._tokens[: self._size], self._counts[: self._size]
