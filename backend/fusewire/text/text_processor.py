"""One folder's tokenizer and chat template: converts conversations and texts to token ids, and
back.

All arguments and results are plain JSON values. The files of a folder are processed here without a
limit on time; for untrusted folders fusewire.text_workers runs this in a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusewire.errors import FusewireError, InvalidInput
from fusewire.text.chat_template import ChatTemplate
from fusewire.text.least_tokens import WORTH_WHILE
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_files import WANTED
from fusewire.text.tokenizer_library import TokenizerFault

# Tokenising takes a few hundred bytes of memory per character. Texts are refused that are longer
# than this many characters, and longer than this many per token of the model's maximum length.
_MANY_CHARACTERS = 1 << 20
_CHARACTERS_PER_TOKEN = 16


class TextProcessor:
    """Thread-safe. `field`: the field of the request that InvalidInput names."""

    def __init__(
        self, tokenizer: Tokenizer | None, template: ChatTemplate | None, max_length: int
    ) -> None:
        """`max_length`: the maximum number of tokens of the model."""
        self._tokenizer = tokenizer
        self._template = template
        self.most_characters = max(_MANY_CHARACTERS, _CHARACTERS_PER_TOKEN * max_length)

    @staticmethod
    def load(
        folder: Path, chat_template: Path | None, *, lowercase: bool, max_length: int
    ) -> TextProcessor:
        """`chat_template`: a file that replaces the folder's. `lowercase`: lower-case texts first.
        Raises CheckpointError."""
        tokenizer = Tokenizer.load(folder)
        if lowercase and tokenizer is not None:
            tokenizer.lowercase()
        return TextProcessor(tokenizer, ChatTemplate.load(folder, chat_template), max_length)

    def description(self) -> dict[str, Any]:
        """Returns what the folder has. `max_length`: the tokenizer's own limit, or None without
        one."""
        return {
            "has_tokenizer": self._tokenizer is not None,
            "has_template": self._template is not None,
            "max_length": self._tokenizer and self._tokenizer.max_length,
        }

    def conversation(
        self,
        field: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the ids of the prompt that the chat template renders from messages. The template
        writes the special tokens itself; a second one at the front would change the answer."""
        if self._template is None:
            raise InvalidInput(
                field,
                "a conversation for a model whose folder has no chat template",
                "a model with one",
                "add chat_template.jinja to the folder, or send a prompt instead of messages",
            )
        text = self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return self.ids(field, text, add_special_tokens)

    def ids(self, field: str, text: str, special_tokens: bool) -> list[int]:
        """Returns the ids of a text."""
        self._check_size(field, text)
        try:
            (encoded,) = self._required().encode(
                [text], offsets=False, special_tokens=special_tokens
            )
        except TokenizerFault as fault:
            raise _unreadable(field, fault) from None
        return list(encoded.ids)

    def last_tokens(self, field: str, text: str, most: int, special_tokens: bool) -> list[int]:
        """Returns the last `most` ids of a text, including special tokens."""
        self._check_size(field, text)
        try:
            return self._required().last_tokens(text, most, special_tokens=special_tokens)
        except TokenizerFault as fault:
            raise _unreadable(field, fault) from None

    def text(self, field: str, tokens: Sequence[int]) -> str:
        """Returns the text of token ids."""
        tokenizer = self._required()
        for token in tokens:
            if not tokenizer.has(token):
                wanted = "ids of the model's tokenizer"
                raise InvalidInput(field, f"id {token}", wanted, "use this model's tokenizer")
        return tokenizer.decode(list(tokens))

    def pieces(self, field: str, tokens: Sequence[int]) -> list[str]:
        """Returns each token's string in the vocabulary."""
        return [self._required().piece(token) for token in tokens]

    def echo(
        self, field: str, prompt: str | Sequence[int], special_tokens: bool
    ) -> tuple[str, list[int], str, list[int] | None, int]:
        """Returns a prompt's text and ids; of the first token the text and, where it is part of a
        character, the bytes; and the number of characters in the tokens' texts that precede the
        prompt's text."""
        if isinstance(prompt, str):
            text, ids = prompt, self.ids(field, prompt, special_tokens)
        else:
            text, ids = self.text(field, prompt), list(prompt)
        tokenizer = self._required()
        unseen = tokenizer.token_text.unseen(ids, tokenizer.special_ids, text)
        first = tokenizer.token_text(ids[0]) if ids else ""
        part = tokenizer.token_text.part(ids[0]) if ids else None
        return text, ids, first, None if part is None else [*part], unseen

    def count(
        self, field: str, texts: Sequence[str | Sequence[str]], prompt: str, limit: int
    ) -> int:
        """Returns the number of tokens of texts, each after `prompt`, or of pairs, each truncated
        to `limit`."""
        whole: list[str | tuple[str, str]] = []
        for one in texts:
            parts = [prompt + one] if isinstance(one, str) else list(one)
            # This much of a longer text almost always fills the limit.
            parts = [part[: self.most_characters] for part in parts]
            if not self._fills(parts, limit):
                whole.append(parts[0] if len(parts) == 1 else (parts[0], parts[1]))
        try:
            encoded = self._required().encode(whole, offsets=False)
        except TokenizerFault as fault:
            raise _unreadable(field, fault) from None
        filled = limit * (len(texts) - len(whole))
        return filled + sum(min(len(each), limit) for each in encoded)

    def _fills(self, texts: Sequence[str], limit: int) -> bool:
        """Whether a text or pair certainly has `limit` tokens, without tokenising it."""
        if sum(map(len, texts)) <= WORTH_WHILE:
            return False
        tokenizer = self._required()
        least = tokenizer.added_tokens(pair=len(texts) > 1)
        return least + sum(tokenizer.least_tokens.of(text, limit) for text in texts) >= limit

    def _check_size(self, field: str, text: str) -> None:
        if len(text) > self.most_characters:
            got, wanted = f"{len(text)} characters", f"at most {self.most_characters}"
            raise InvalidInput(field, got, wanted, "shorten or split the text")

    def _required(self) -> Tokenizer:
        if self._tokenizer is None:
            raise FusewireError(f"the tokenizer: got none, wanted {WANTED}; add the file")
        return self._tokenizer


def _unreadable(field: str, fault: TokenizerFault) -> InvalidInput:
    got = f"a text that the tokenizer cannot read ({fault})"
    return InvalidInput(field, got, "text", "send valid Unicode")
