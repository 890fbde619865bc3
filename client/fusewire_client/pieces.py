"""What a call requests of generated texts, and how a response is parsed. No I/O happens here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import replies
from .answers import Alignment, Generated, Logprob, Segment, Usage, Word
from .errors import ServerError
from .plans import Arrays

TEXT = "text_output"
_DETAILS = (
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_cached_tokens",
    "num_output_tokens",
)
_SCORES = "sequences_scores"  # only with the last response of beam search
_AT_TIMES = (_SCORES, "segments")
_OF_A_WINDOW = ("seek", "avg_logprob", "temperature", "no_speech_prob")


class Asked(NamedTuple):
    """How prompts are answered, and by which model; `parameters` are those of generation."""

    details: bool
    stream: bool
    model: str | None
    version: str
    timeout_s: float | None
    parameters: dict[str, Any]
    audio: bool = False  # audio instead of prompts

    @property
    def outputs(self) -> tuple[str, ...]:
        """Returns the names of the outputs wanted in addition to the text."""
        if not self.details:
            return ()
        if self.audio:
            return (*_DETAILS, _SCORES, "segments", "language")
        scored = self.parameters.get("prompt_logprobs") is not None
        aligned = self.parameters.get("alignment")
        more = ("prompt_logprobs",) * scored + ("alignment",) * bool(aligned)
        return (*_DETAILS, _SCORES, *more)


def pieces(outputs: Arrays, asked: Asked) -> Iterator[Generated]:
    """Yields a piece for each text of a response; without details it has the text alone."""
    found = outputs.get(TEXT)
    wanted = asked.parameters.get("n", 1)
    if found is None or found.size != wanted:
        got = "nothing" if found is None else "1 text" if found.size == 1 else f"{found.size} texts"
        raise ServerError(f"{TEXT}: got {got}, wanted {wanted}; is it a model that generates?")
    if not asked.details:
        for index, text in enumerate(found.reshape(-1)):
            yield Generated(text.decode(), None, Usage(0, 0), 0.0, index=index)
        return
    wanted = [name for name in asked.outputs if name not in _AT_TIMES or name in outputs]
    if missing := [name for name in wanted if name not in outputs]:
        raise ServerError(
            f"details: got none of {', '.join(missing)}, wanted all; is it an older server, or "
            "another backend's model?"
        )
    flat = {name: outputs[name].reshape(-1) for name in (TEXT, *wanted)}
    prompt, cached = int(flat["num_input_tokens"][0]), int(flat["num_cached_tokens"][0])
    scored = flat["prompt_logprobs"][0] if "prompt_logprobs" in flat else b"null"
    prompt_logprobs = replies.parsed(scored, "prompt_logprobs", _logprobs)
    for index, text in enumerate(flat[TEXT]):
        reason = flat["finish_reason"][index].decode()
        tokens = int(flat["num_output_tokens"][index])
        if asked.stream and not tokens and reason == "None" and not text:
            continue  # this text had ended; the response is of the others
        yield Generated(
            text.decode(),
            None if reason == "None" else reason,
            Usage(prompt, tokens, cached),
            float(flat["cumulative_logprob"][index]),
            replies.parsed(flat["logprobs"][index], "logprobs", _logprobs),
            index,
            prompt_logprobs,
            float(flat[_SCORES][index]) if _SCORES in flat else None,
            replies.parsed(flat["alignment"][index], "alignment", _alignment)
            if "alignment" in flat
            else None,
            replies.parsed(flat["segments"][index], "segments", _segments)
            if "segments" in flat
            else None,
            (flat["language"][0].decode() or None) if "language" in flat else None,
        )


def _logprobs(tokens: list[dict[str, dict[str, Any]] | None] | None) -> Any:
    """Returns log-probabilities by token id; None where there are none, and for a prompt's first
    token."""
    return None if tokens is None else [None if each is None else _by_id(each) for each in tokens]


def _alignment(record: dict[str, Any] | None) -> Alignment | None:
    if record is None:
        return None
    weights = np.array(record["weights"], np.float32)
    return Alignment(record["source_ids"], record["token_ids"], weights)


def _segments(records: list[dict[str, Any]] | None) -> list[Segment] | None:
    if records is None:
        return None
    return [
        Segment(
            one["start"],
            one["end"],
            one["text"],
            _words(one.get("words")),
            **{name: one.get(name) for name in _OF_A_WINDOW},
        )
        for one in records
    ]


def _words(records: list[dict[str, Any]] | None) -> list[Word] | None:
    if records is None:
        return None
    return [Word(one["word"], one["start"], one["end"]) for one in records]


def _by_id(entry: dict[str, dict[str, Any]]) -> dict[int, Logprob]:
    return {
        int(token): Logprob(one["logprob"], one["rank"], one["decoded_token"])
        for token, one in entry.items()
    }
