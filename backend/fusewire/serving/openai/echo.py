"""The prompts of a request for completions, as `echo` puts them before what was generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.serving.openai.generation import Piece, Token, token_at
from fusewire.serving.openai.served import Generator
from fusewire.tasks.written import written_whole


@dataclass(frozen=True)
class Echo:
    """Of each prompt its text, its ids, and the text of the first of these."""

    texts: Sequence[str]
    ids: Sequence[list[int]]
    first_tokens: Sequence[str]
    choices: int  # of each prompt
    logprobs: int | None  # of so many likeliest tokens at each place

    @staticmethod
    def of(
        model: Generator,
        prompts: Sequence[str] | Sequence[list[int]],
        parameters: Mapping[str, Any],
    ) -> Echo:
        """Slow: in a thread. InvalidInput for what cannot be tokenised, or is no token."""
        special = parameters.get("add_special_tokens") is not False
        texts = [each if isinstance(each, str) else model.text("prompt", each) for each in prompts]
        ids = [
            model.ids("prompt", each, special) if isinstance(each, str) else each
            for each in prompts
        ]
        firsts = [model.text("prompt", each[:1]) for each in ids]
        logprobs = written_whole(parameters.get("logprobs"))
        count = logprobs if isinstance(logprobs, int) else None  # else the model refuses it
        return Echo(texts, ids, firsts, parameters["n"], count)

    def text(self, piece: Piece) -> str:
        """The prompt of the piece's choice."""
        return self.texts[piece.choice // self.choices]

    def unseen(self, piece: Piece) -> int:
        """Characters of a first token that the tokenizer put there, so that `text` has not."""
        first = self.first_tokens[piece.choice // self.choices]
        return 0 if self.text(piece).startswith(first) else len(first)

    def tokens(self, piece: Piece) -> list[Token]:
        """Its tokens, where log-probabilities are requested."""
        if self.logprobs is None or piece.prompt_logprobs is None:
            return []
        first = Token(self.first_tokens[piece.choice // self.choices], None)
        scored = [place for place in piece.prompt_logprobs if place is not None]
        return [first, *(token_at(place, self.logprobs) for place in scored)]
