"""Messages become the prompt of transformers; errors describe what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.generation.chat import MOST_BYTES, Chat
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.tasks.generate import GenerateRequest, read
from fusewire.text.chat_template import FILE
from fusewire.text.text_processor import TextProcessor
from transformers import PreTrainedTokenizerFast

from tests.engine.generating import END, byte_tokenizer

LIMITS = GenerationLimits(vocab_size=257, max_length=200, max_request_tokens=400, max_sequences=4)
TEMPLATE = (
    "{{ bos_token }}{% if quiet %}quiet\n{% endif %}"
    "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
MESSAGES = [{"role": "user", "content": "How are you?"}]


def chat_of(folder: Path, template: str | None = TEMPLATE) -> Chat:
    byte_tokenizer(folder)
    config = {"bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / FILE).write_text(template)
    processor = TextProcessor.load(folder, None, lowercase=False, max_length=LIMITS.max_length)
    return Chat(processor.conversation)


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    return chat_of(tmp_path)


def asked(messages: Any, chat: Chat | None, **parameters: Any) -> GenerateRequest:
    text = messages if isinstance(messages, bytes) else json.dumps(messages).encode()
    given = json.dumps(parameters).encode()
    inputs = {
        "messages": np.array([text], object),
        "sampling_parameters": np.array([given], object),
    }
    return read(inputs, {}, ParameterReader(LIMITS), chat)


@pytest.mark.parametrize(
    "given",
    [{}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"quiet": True}}],
    ids=str,
)
def test_messages_are_the_prompt_of_transformers(chat: Chat, tmp_path: Path, given: Any) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    options = {"add_generation_prompt": True, **given.get("chat_template_kwargs", given)}
    wanted = theirs.apply_chat_template(MESSAGES, tokenize=True, return_dict=False, **options)
    request = asked(MESSAGES, chat, max_tokens=3, **given)
    assert (request.prompt_field, request.prompt) == ("messages", wanted)
    assert request.prompt[0] == END
    assert END not in request.prompt[1:]
    assert request.prefix == ""
    assert request.parameters.max_new_tokens == 3


def test_flags_of_the_template_may_be_written_as_strings(chat: Chat) -> None:
    assert (
        asked(MESSAGES, chat, add_generation_prompt="false").prompt
        == asked(MESSAGES, chat, add_generation_prompt=False).prompt
    )


@pytest.mark.parametrize(
    ("messages", "parameters", "words"),
    [
        ([], {}, "messages: got 0, wanted 1..4096 messages"),
        ({"role": "user"}, {}, "messages: got a JSON object, wanted a JSON list"),
        (b"[", {}, "messages: got ill-formed JSON"),
        (b"[" * 40, {}, "messages: got deeper nesting"),
        (b" " * (MOST_BYTES + 1), {}, "messages: got 16777217 bytes, wanted at most"),
        (["hello"], {}, "messages: got str in message 0"),
        ([{"role": "user", "content": 3}], {}, "content: got int in message 0"),
        (MESSAGES, {"add_generation_prompt": 1}, "add_generation_prompt: got 1, wanted true"),
        (MESSAGES, {"chat_template_kwargs": []}, "chat_template_kwargs: got list"),
        (
            MESSAGES,
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs: got 'messages', wanted names of variables other than",
        ),
        (MESSAGES, {"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs: got 'a b'"),
        (MESSAGES, {"continue_final_message": True}, "continue_final_message: got true"),
    ],
)
def test_what_is_wrong_is_named(chat: Chat, messages: Any, parameters: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        asked(messages, chat, **parameters)
    assert str(caught.value).startswith(words)


def test_the_parameters_of_a_template_want_messages(chat: Chat) -> None:
    inputs, reader = {"text_input": np.array([b"p"], object)}, ParameterReader(LIMITS)
    assert read(inputs, {"add_generation_prompt": True}, reader, chat).prompt == "p"
    with pytest.raises(InvalidInput, match="add_generation_prompt: got false, wanted true or null"):
        read(inputs, {"add_generation_prompt": False}, reader, chat)


def test_a_prompt_is_given_in_one_way(chat: Chat) -> None:
    both = {"text_input": np.array([b"p"], object), "messages": np.array([b"[]"], object)}
    with pytest.raises(
        InvalidInput, match="text_input: got text_input and messages, wanted one of"
    ):
        read(both, {}, ParameterReader(LIMITS), chat)
    with pytest.raises(InvalidInput, match="text_input: got no prompt, wanted one of"):
        read({}, {}, ParameterReader(LIMITS), chat)


def test_a_folder_without_a_template_says_so(tmp_path: Path) -> None:
    chat = chat_of(tmp_path, None)
    with pytest.raises(
        InvalidInput, match=r"messages: got .* no chat template, .* chat_template.jinja"
    ):
        asked(MESSAGES, chat)


def test_a_template_that_is_none_is_refused_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: line 1"):
        chat_of(tmp_path, "{% if %}")
