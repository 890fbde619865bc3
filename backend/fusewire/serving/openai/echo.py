"""The prompts of a request for completions, which `echo` puts before the generated text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.errors import InvalidInput
from fusewire.serving.openai.bodies import entry
from fusewire.serving.openai.generation import Piece, Token, token_at
from fusewire.serving.openai.served import Generator
from fusewire.text.written import written_whole


@dataclass(frozen=True)
class Echo:
    """What `echo` returns of each prompt: its text, its ids, the bytes of the first id, and the
    number of characters in the tokens' texts before the prompt, which the tokenizer added."""

    texts: Sequence[str]
    ids: Sequence[list[int]]
    first_tokens: Sequence[bytes]
    characters_before: Sequence[int]
    choices: int  # number of choices of each prompt
    logprobs: int | None  # number of likeliest tokens at each position

    @staticmethod
    async def of(
        model: Generator,
        prompts: Sequence[str] | Sequence[list[int]],
        parameters: Mapping[str, Any],
    ) -> Echo:
        """Tokenises the prompts. Raises InvalidInput for text that cannot be tokenised, for unknown
        ids, and for a model that does not continue its prompts."""
        if model.reads_sources:
            raise InvalidInput("echo", "true", "false for an encoder-decoder model", "leave it out")
        special = parameters.get("add_special_tokens") is not False
        echoes = [
            await model.compute(
                "echo", entry("prompt", index, prompts), prompt=prompt, special_tokens=special
            )
            for index, prompt in enumerate(prompts)
        ]
        texts, ids, first_texts, parts, before = map(list, zip(*echoes, strict=True))
        firsts = [
            text.encode() if part is None else bytes(part)
            for text, part in zip(first_texts, parts, strict=True)
        ]
        logprobs = written_whole(parameters.get("logprobs"))
        count = logprobs if isinstance(logprobs, int) else None  # the model refuses other values
        return Echo(texts, ids, firsts, before, parameters["n"], count)

    def text(self, piece: Piece) -> str:
        """Returns the prompt of the piece's choice."""
        return self.texts[piece.choice // self.choices]

    def unseen(self, piece: Piece) -> int:
        """Returns the number of characters in the texts of the first tokens that are not in
        `text`."""
        return self.characters_before[piece.choice // self.choices]

    def tokens(self, piece: Piece) -> list[Token]:
        """Returns the prompt's tokens, where log probabilities are requested."""
        if self.logprobs is None or piece.prompt_logprobs is None:
            return []
        first = Token(self.first_tokens[piece.choice // self.choices], None)
        scored = [place for place in piece.prompt_logprobs if place is not None]
        return [first, *(token_at(place, self.logprobs) for place in scored)]
