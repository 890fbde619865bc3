"""Converts the events of a request to the tensors of its responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.continuation import Alignment, Delta
from fusewire.engine.prompt_logprobs import PromptLogprobs
from fusewire.generation.speech import Segment
from fusewire.generation.speech_words import timed_words
from fusewire.tasks.generate import GenerateRequest
from fusewire.tasks.transcribe import TranscribeRequest

Outputs = dict[str, NDArray[Any]]

# The value of log 0 in OpenAI's API; JSON has no infinity.
_LEAST_LOGPROB = -9999.0


class TokensToText(NamedTuple):
    """Functions that convert a model's tokens to text."""

    spell: Callable[[int], str]  # a token's text, for log probabilities
    # The bytes of a token that is part of a character, otherwise None.
    part: Callable[[int], bytes | None] = lambda token: None
    decode: Callable[[list[int]], str] = lambda token_ids: ""  # text of a segment's tokens
    decode_word: Callable[[list[int]], str] = lambda token_ids: ""  # text of a word, spaces kept


class Generated:
    """The parts of a request's n texts that have not been sent yet.

    With streaming a response has what was added to each text since the last response. Otherwise
    there is one response.
    """

    def __init__(
        self, request: GenerateRequest, num_input_tokens: int, to_text: TokensToText
    ) -> None:
        count = request.parameters.n
        self._request = request
        self._to_text = to_text
        self._num_input_tokens = num_input_tokens
        self._num_cached_tokens = 0
        self._texts = [request.prefix] * count
        self._tokens = [0] * count
        self._logprobs: list[list[dict[int, dict[str, Any]]]] = [[] for _ in range(count)]
        self._prompt_logprobs = "null"  # before and after they are sent
        self._reasons: list[str | None] = [None] * count
        self._cumulative = [0.0] * count
        self._scores: dict[int, float] = {}  # scores of the texts that beam search has found
        self._alignments = ["null"] * count  # each is sent with the last piece of its text
        # The segments that the new piece of each text completes; None where it completes none.
        self._segments: list[list[dict[str, Any]] | None] = [None] * count
        self._language = ""
        self._duration = request.duration if isinstance(request, TranscribeRequest) else 0.0
        self._pending: set[int] = set()  # texts with something to send
        self._open = set(range(count))
        self.ready = False  # whether there is a response to send
        self._makes: list[tuple[str, _Make]] = _makes(request.returned)

    @property
    def ended(self) -> bool:
        return not self._open

    def add(self, delta: Delta) -> None:
        """Adds the output of a step to one text. With streaming a response is ready once every open
        text has new output, or one text gets output twice (the others may have been preempted)."""
        index = delta.index
        again = index in self._pending
        self._pending.add(index)
        self._texts[index] += delta.text
        self._reasons[index] = delta.finish_reason
        self._cumulative[index] = delta.cumulative_logprob
        self._num_cached_tokens = delta.num_cached_tokens
        if delta.score is not None:
            self._scores[index] = delta.score
        if delta.alignment is not None and "alignment" in self._request.returned:
            self._alignments[index] = _alignment_json(delta.alignment)
        self._language = delta.language or ""
        if delta.segments is not None and "segments" in self._request.returned:
            said = [self._segment(each) for each in delta.segments]
            self._segments[index] = [*(self._segments[index] or []), *said]
        self._tokens[index] += len(delta.token_ids)
        if delta.token is not None and "logprobs" in self._request.returned:
            self._logprobs[index].append(self._alternatives(delta.token, delta))
        if delta.prompt_logprobs is not None and "prompt_logprobs" in self._request.returned:
            self._prompt_logprobs = self._prompt_json(delta.prompt_logprobs)
        if delta.finish_reason is not None:
            self._open.discard(index)
        together = again or self._open <= self._pending
        self.ready = self.ended or (self._request.stream and (self.ready or together))

    def take(self) -> Outputs:
        """Returns the outputs of a response, with everything added since the last one."""
        made: Outputs = {}
        for name, make in self._makes:
            if (array := make(self)) is not None:
                made[name] = array
        count = len(self._texts)
        self._texts, self._tokens = [""] * count, [0] * count
        self._logprobs = [[] for _ in range(count)]
        self._prompt_logprobs, self._alignments = "null", ["null"] * count
        self._segments = [None] * count
        self._pending.clear()
        self.ready = False
        return made

    def _sequences_scores(self) -> NDArray[Any] | None:
        """Returns the scores of the texts that beam search has found, float32 [n], or None before
        the end of a search and without one."""
        if len(self._scores) < len(self._texts):
            return None
        scores = [self._scores[index] for index in range(len(self._texts))]
        return np.array(scores, np.float32)

    def _segment(self, segment: Segment) -> dict[str, Any]:
        record: dict[str, Any] = {
            "start": segment.start,
            "end": segment.end,
            "text": self._to_text.decode([*segment.token_ids]),
            "tokens": list(segment.token_ids),
        }
        if segment.window is not None:
            found = asdict(segment.window).items()
            record |= {name: value for name, value in found if value is not None}
            record["avg_logprob"] = max(record["avg_logprob"], _LEAST_LOGPROB)
        words = timed_words(segment, self._language or None, self._to_text.decode_word)
        if words is not None:
            record["words"] = [*map(asdict, words)]
        return record

    def _json(self, tokens: list[dict[int, dict[str, Any]]]) -> str:
        return "null" if self._request.parameters.logprobs is None else json.dumps(tokens)

    def _prompt_json(self, scored: PromptLogprobs) -> str:
        entries = (
            None if entry is None else {token: self._one(token, *entry[token]) for token in entry}
            for entry in scored
        )
        return f"[{', '.join(map(json.dumps, entries))}]"

    def _alternatives(self, token: int, delta: Delta) -> dict[int, dict[str, Any]]:
        """Returns the log probabilities of the chosen token and of the requested number of
        likeliest tokens, by token id."""
        found = {token: self._one(token, delta.logprob, delta.rank)}
        for rank, (other, logprob) in enumerate(delta.top_logprobs, 1):
            found[other] = self._one(other, logprob, rank)
        return found

    def _one(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": max(logprob, _LEAST_LOGPROB),
            "rank": rank or None,  # beam search has none
            **self._spelled(token),
        }

    @cached_property
    def _spelled(self) -> Callable[[int], dict[str, Any]]:
        to_text = self._to_text
        return cache(lambda token: _spelled(to_text.spell(token), to_text.part(token)))


def _spelled(text: str, part: bytes | None) -> dict[str, Any]:
    return {"decoded_token": text} if part is None else {"decoded_token": text, "bytes": [*part]}


def _alignment_json(alignment: Alignment) -> str:
    weights = alignment.weights.astype(np.float64).round(6).tolist()
    source_ids, token_ids = list(alignment.source_ids), list(alignment.token_ids)
    return json.dumps({"source_ids": source_ids, "token_ids": token_ids, "weights": weights})


def _strings(texts: list[str]) -> NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array


# Values that repeat in most responses are cached as one array, which senders pack only once.
@lru_cache
def _counts(counts: tuple[int, ...]) -> NDArray[np.uint32]:
    return np.array(counts, np.uint32)


@lru_cache
def _reasons(reasons: tuple[str | None, ...]) -> NDArray[Any]:
    return _strings([str(reason) for reason in reasons])


_Make = Callable[[Generated], NDArray[Any] | None]
# Output -> function that makes it from what was added since the last response. The function returns
# None where the response does not have the output.
_OUTPUTS: dict[str, _Make] = {
    "text_output": lambda its: _strings(its._texts),
    # "None" for a text that has not ended, as in vllm_backend.
    "finish_reason": lambda its: _reasons(tuple(its._reasons)),
    "cumulative_logprob": lambda its: np.array(its._cumulative, np.float32),
    "sequences_scores": lambda its: its._sequences_scores(),
    "logprobs": lambda its: _strings([its._json(each) for each in its._logprobs]),
    "num_input_tokens": lambda its: _counts((its._num_input_tokens,)),
    "num_cached_tokens": lambda its: _counts((its._num_cached_tokens,)),
    "num_output_tokens": lambda its: _counts(tuple(its._tokens)),
    "prompt_logprobs": lambda its: _strings([its._prompt_logprobs]),
    "alignment": lambda its: _strings(its._alignments),
    "segments": lambda its: _strings([json.dumps(each) for each in its._segments]),
    "language": lambda its: _strings([its._language]),
    "duration": lambda its: np.array([its._duration], np.float32),
}


@lru_cache
def _makes(returned: frozenset[str]) -> list[tuple[str, _Make]]:
    """Returns the functions that make the outputs of a request: `text_output` and those in
    `returned`."""
    return [(name, make) for name, make in _OUTPUTS.items() if name in {"text_output"} | returned]
