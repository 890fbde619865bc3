"""Renders messages with a folder's chat template to the text of a prompt, as transformers does.

The template comes from the folder, never from a request. A conversation that it refuses, or cannot
render, is an error of its request. The time of rendering is not limited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import SecurityError

from fusewire.errors import CheckpointError, InvalidInput, type_name
from fusewire.text.conversation import MOST_CHARACTERS, checked_messages, json_size
from fusewire.text.template_sandbox import TemplateSandbox
from fusewire.text.tokenizer_files import CONFIG
from fusewire.weights import file_in, read_json

FILE = "chat_template.jinja"
LEGACY_FILE = "chat_template.json"
# Published templates have less than half of it. Compiling this much takes seconds; the time grows
# with the size.
MOST_TEMPLATE_BYTES = 1 << 17

_VARIABLES = "chat_template_kwargs"  # the field of requests
_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """One folder's template, compiled once. Rendering is thread-safe."""

    def __init__(self, text: str, special_tokens: Mapping[str, str], *, source: str) -> None:
        """`special_tokens`: by role (bos_token), which are the names that the template uses.
        `source`: the file that messages name. Raises CheckpointError for text that is not a
        template, or not a safe one."""
        self._source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().compiled(text)
        except TemplateSyntaxError as error:
            raise CheckpointError(
                f"{source}: line {error.lineno}: {_brief(error)}, wanted a Jinja template; "
                "correct it"
            ) from None
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise self._unsafe(error) from None

    @staticmethod
    def load(folder: Path, file: Path | None = None) -> ChatTemplate | None:
        """Returns the folder's template: chat_template.jinja, otherwise that of
        tokenizer_config.json (of several, the one named default), otherwise that of
        chat_template.json, or None. `file`: the operator's template, which replaces the
        folder's."""
        config = read_json(folder, CONFIG) or {}
        found = _text_of(folder, config) if file is None else (_read(file, str(file)), str(file))
        if found is None:
            return None
        text, source = found
        tokens = (read_json(folder, "special_tokens_map.json") or {}) | config
        named = {
            role: token.get("content") if isinstance(token, dict) else token
            for role, token in tokens.items()
            if role.endswith("_token")
        }
        special = {role: token for role, token in named.items() if isinstance(token, str)}
        return ChatTemplate(text, special, source=source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the prompt with its special tokens written out. Tokenise it without adding any.

        `messages`: objects with `role` and, where they have text, `content`, as parsed from JSON.
        `add_generation_prompt`: end with the beginning of the assistant's answer.
        `template_kwargs`: further variables of the template (enable_thinking, …) with plain JSON
        values.
        """
        conversation = checked_messages(messages)
        further = self._checked_variables(template_kwargs or {})
        try:
            return self._template.render(
                messages=conversation,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **further,
            )
        except MemoryError:  # the process that limits the memory reports it
            raise
        except SecurityError as error:
            raise self._unsafe(error) from None
        except _Refusal as error:
            raise _refused(f"what the chat template refuses ({_brief(error)})") from None
        except Exception as error:  # any type, for data that a template does not expect
            got = f"what the chat template cannot render ({type(error).__name__}: {_brief(error)})"
            raise _refused(got) from None

    def _checked_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        taken = {*_OWN_VARIABLES, *self._special_tokens, *self._template.globals}
        for name in variables:
            if not name.isidentifier() or name in taken:
                wanted = f"names of variables other than {', '.join(sorted(taken))}"
                raise InvalidInput(_VARIABLES, repr(name)[:80], wanted, "remove it")
        size = json_size(variables, "", _VARIABLES)
        if size > MOST_CHARACTERS:
            got, most = f"over {MOST_CHARACTERS} characters", f"at most {MOST_CHARACTERS}"
            raise InvalidInput(_VARIABLES, got, most, "shorten it")
        return variables

    def _unsafe(self, error: BaseException) -> CheckpointError:
        return CheckpointError(
            f"{self._source}: got a template that is not safe ({_brief(error)}), wanted one that "
            "only formats its messages; take the model from a source you trust"
        )


class _Refusal(TemplateError):
    """Raised by `raise_exception` in a template."""


def _environment() -> TemplateSandbox:
    """Returns a sandbox with the functions that transformers provides to chat templates."""

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def raise_exception(message: str) -> NoReturn:
        raise _Refusal(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = TemplateSandbox()
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _text_of(folder: Path, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns (template, the file that contains it), or None."""
    path = file_in(folder, FILE)
    if path is not None:
        return _read(path, FILE), FILE
    value, source = config.get("chat_template"), CONFIG
    if value is None:
        value, source = (read_json(folder, LEGACY_FILE) or {}).get("chat_template"), LEGACY_FILE
    if value is None:
        return None
    if isinstance(value, list):
        value = _default_of(value, source)
    if not isinstance(value, str) or len(value) > MOST_TEMPLATE_BYTES:
        got = f"{len(value)} characters" if isinstance(value, str) else type_name(value, "null")
        raise CheckpointError(
            f"{source}: chat_template: got {got}, wanted a template of at most "
            f"{MOST_TEMPLATE_BYTES} characters; correct or shorten it"
        )
    return value, source


def _read(path: Path, name: str) -> str:
    """Returns the content of a template file. `name`: its name in messages."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_TEMPLATE_BYTES + 1)
        if len(text) > MOST_TEMPLATE_BYTES:
            raise CheckpointError(
                f"{name}: got over {MOST_TEMPLATE_BYTES} bytes, wanted at most as many, as a "
                "template that only formats messages has; shorten it"
            )
        return text.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{name}: not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        why = error.strerror or error
        raise CheckpointError(f"{name}: cannot be read ({why}); give a file") from None


def _default_of(templates: list[Any], source: str) -> Any:
    named = {
        entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)
    }
    if "default" not in named:
        raise CheckpointError(
            f"{source}: chat_template: got {repr(list(named))[:80]}, wanted one named 'default'; "
            f"save the one to use as {FILE}"
        )
    return named["default"]


def _refused(got: str) -> InvalidInput:
    return InvalidInput(
        "messages", got, "a conversation in the model's form", "change the messages"
    )


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]
