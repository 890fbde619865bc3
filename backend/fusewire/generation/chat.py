"""Chat messages to the ids of a prompt, by the folder's template and tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusewire.errors import InvalidInput, sent, type_name
from fusewire.text.bounded_json import read_list
from fusewire.text.conversation import MOST_NESTING

FIELD = "messages"
# A conversation as long as a template takes, mostly of characters that JSON escapes.
MOST_BYTES = 1 << 24


class Chat:
    """One model's way to read a conversation."""

    def __init__(self, conversation: Callable[..., list[int]]) -> None:
        """`conversation`: TextProcessor's, or one that computes the same elsewhere."""
        self._conversation = conversation

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """The prompt's ids, for `read_prompt` to check; InvalidInput, also where the folder has no
        template.

        `messages`: objects with `role` and `content`, as parsed from JSON. `add_generation_prompt`:
        end with the beginning of the assistant's answer. `chat_template_kwargs`: further names that
        the template may ask for. `add_special_tokens`: those that the tokenizer puts around a text,
        with those that the template has written.
        """
        for name, flag in (
            ("add_generation_prompt", add_generation_prompt),
            ("add_special_tokens", add_special_tokens),
        ):
            if not isinstance(flag, bool):
                raise InvalidInput(name, sent(flag), "true or false", "correct or remove it")
        if not isinstance(chat_template_kwargs, Mapping | None):
            got = type_name(chat_template_kwargs)
            raise InvalidInput("chat_template_kwargs", got, "a JSON object", "send {} or more")
        return self._conversation(
            FIELD,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            add_special_tokens=add_special_tokens,
            template_kwargs=chat_template_kwargs,
        )


def read_messages(text: bytes) -> list[Any]:
    """The JSON list of a request; what is in it the template checks. InvalidInput."""
    return read_list(FIELD, text, MOST_BYTES, MOST_NESTING)
