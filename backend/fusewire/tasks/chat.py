"""Chat messages to the ids of a prompt, by the folder's template and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusewire.errors import InvalidInput
from fusewire.tasks.bounded_json import read_list
from fusewire.tasks.chat_template import MOST_NESTING, ChatTemplate
from fusewire.tasks.generation_checks import GenerationLimits
from fusewire.tasks.prompt import prompt_ids
from fusewire.tasks.tokenizer import Tokenizer

FIELD = "messages"
# A conversation as long as a template takes, mostly of characters that JSON escapes.
MOST_BYTES = 1 << 24


class Chat:
    """One model's way to read a conversation; safe from several threads."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, limits: GenerationLimits) -> None:
        """CheckpointError: the folder's template is none, or not a safe one."""
        self._template = ChatTemplate.load(folder)
        self._tokenizer = tokenizer
        self._limits = limits

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """The prompt's ids; InvalidInput, also where the folder has no template.

        `messages`: objects with `role` and `content`, as parsed from JSON. `add_generation_prompt`:
        end with the beginning of the assistant's answer. `chat_template_kwargs`: further names that
        the template may ask for. `add_special_tokens`: beside those that the template has written.
        """
        if self._template is None:
            raise InvalidInput(
                FIELD,
                "a conversation for a model whose folder has no chat template",
                "a model with one",
                "add chat_template.jinja to the folder, or send a prompt instead of messages",
            )
        if not isinstance(chat_template_kwargs, Mapping | None):
            got = type(chat_template_kwargs).__name__
            raise InvalidInput("chat_template_kwargs", got, "a JSON object", "send {} or more")
        text = self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=chat_template_kwargs,
        )
        return prompt_ids(
            text,
            self._tokenizer,
            self._limits.vocab_size,
            most=self._limits.max_length - 1,
            add_special_tokens=add_special_tokens,
            field=FIELD,
        )


def read_messages(text: bytes) -> list[Any]:
    """The JSON list of a request; what is in it the template checks. InvalidInput."""
    return read_list(FIELD, text, MOST_BYTES, MOST_NESTING)
