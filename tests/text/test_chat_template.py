"""Chat templates against transformers, and templates that access what they must not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.text.chat_template import MOST_TEMPLATE_BYTES, ChatTemplate
from fusewire.text.conversation import MOST_CHARACTERS, MOST_MESSAGES
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- set ns = namespace(system='', n=0) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if tools is not none %}tools{% endif %}
{%- macro header(role) %}<|start|>{{ role }}<|end|>{{ '\\n\\n' }}{% endmacro %}
{{- header('system') }}{{ ns.system }}<|eot|>
{%- for message in messages %}
    {%- if message.content is not defined %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {{- header(message['role']) + message['content'].strip().replace('  ', ' ') + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ header('assistant') }}[{{ ns.n }}]{% endif %}
"""

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)

MISTRAL = """\
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- if message.tool_calls is defined %}
            {{- '[CALLS] [' }}
            {%- for call in message.tool_calls %}
                {{- call.function | tojson }}{{ ', ' if not loop.last else ']' }}
            {%- endfor %}
        {%- else %}
            {%- generation %}{{ ' ' + message.content + eos_token }}{%- endgeneration %}
        {%- endif %}
    {%- else %}
        {{- message | tojson(indent=2) + '%-6s|%3d' | format(message.role, loop.index) }}
    {%- endif %}
{%- endfor %}
{{- users | length }}{{ users | map(attribute='content') | join('/') }}
{{- '{}:{:>4}'.format(users[0].role, 7) if users }}{{ ([1, 2] + [3] * 2) | tojson }}{{ 2 ** 10 }}
"""

STYLES = {"ChatML": CHATML, "Llama": LLAMA, "Gemma": GEMMA, "Mistral": MISTRAL}

texts = st.text("aZ é<|{%}'\"&\n", max_size=12)
conversations = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts},
        optional={
            "name": texts,
            "tool_calls": st.just(
                [{"type": "function", "function": {"name": "é", "n": [1, None]}}]
            ),
            "refusal": st.none(),
        },
    ),
    min_size=1,
    max_size=5,
)


def template(text: str) -> ChatTemplate:
    return ChatTemplate(text, TOKENS, source="chat_template.jinja")


def user(text: str = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def reference(text: str) -> PreTrainedTokenizerFast:
    backend = Backend(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=text, **TOKENS)


@pytest.mark.parametrize("style", STYLES)
@given(messages=conversations, prompt=st.booleans())
def test_a_conversation_becomes_what_transformers_makes_of_it(
    style: str, messages: list[dict[str, Any]], prompt: bool
) -> None:
    theirs = reference(STYLES[style])
    try:
        expected = theirs.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt
        )
    except Exception:
        with pytest.raises(InvalidInput, match=r"^messages: got what the chat template"):
            template(STYLES[style]).render(messages, add_generation_prompt=prompt)
    else:
        assert template(STYLES[style]).render(messages, add_generation_prompt=prompt) == expected


def test_a_templates_own_refusal_is_the_requests_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        template(GEMMA).render([{"role": "system", "content": "x"}])
    assert str(caught.value) == (
        "messages: got what the chat template refuses (System role not supported), "
        "wanted a conversation in the model's form; change the messages"
    )


def test_the_time_is_that_of_now() -> None:
    made = template("{{ strftime_now('%Y') }}").render(user())
    assert made == time.strftime("%Y")


def test_a_message_is_data_and_never_a_template() -> None:
    assert template("{{ messages[0].content }}").render(user("{{ 7 * 7 }}")) == "{{ 7 * 7 }}"


CONSTANTS = {
    "text": "{{ 'x' * 10000000000 }}",
    "a power": "{% set x = 10 ** 10000000000 %}",
    "a filter": "{{ 'x' | center(10000000000) }}",
    "a test": "{% if 10 ** 10000000000 is even %}{% endif %}",
    "a condition": "{{ 1 if 10 ** 10000000000 else 2 }}",
    "a comparison": "{{ 10 ** 10000000000 > 1 }}",
}


@pytest.mark.parametrize("constant", CONSTANTS)
def test_compiling_a_template_computes_none_of_its_constants(constant: str) -> None:
    started = time.process_time()
    template(CONSTANTS[constant])
    assert time.process_time() - started < 5


def test_whether_to_escape_is_not_computed_as_a_template_is_compiled() -> None:
    with pytest.raises(CheckpointError, match="it computes whether to escape"):
        template("{% autoescape 'x' | center(10000000000) %}{% endautoescape %}")
    plain = "{% autoescape true %}{{ messages[0].content }}{% endautoescape %}"
    assert template(plain).render(user("<")) == "&lt;"


def test_the_largest_template_is_compiled_in_time() -> None:
    started = time.process_time()
    template("{{a}}" * (MOST_TEMPLATE_BYTES // len("{{a}}")))
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ ''['__class__']['__base__'] }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ messages | attr('__class__') | string }}{{ messages.append(1) }}",
        "{% set n = namespace() %}{% set n.__init__ = 1 %}",
        "{{ namespace(_a=1) }}",
    ],
)
def test_a_template_that_reaches_for_python_is_the_folders_fault(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja: got a template that is not"):
        template(text).render(user())


@pytest.mark.parametrize("text", ["{% include 'x' %}", "{% import 'x' as y %}", "{{ nothing.x }}"])
def test_what_cannot_be_rendered_is_said_without_paths(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot render") as caught:
        template(text).render(user())
    assert "/" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("text", ["{% for %}", "{{ x", "{% nonsense %}", "{{ 1 | nonsense }}"])
def test_what_is_no_template_is_the_folders_fault(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja: line 1: .+; correct it$"):
        template(text)


def test_nesting_without_end_is_the_folders_fault() -> None:
    with pytest.raises(CheckpointError, match="not safe"):
        template("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages: got 0, wanted 1.."),
        (user() * (MOST_MESSAGES + 1), "messages: got 4097, wanted 1..4096"),
        ("hi", "messages: got str, wanted a list"),
        (None, "messages: got null, wanted a list"),
        ([None], "messages: got null in message 0, wanted objects"),
        ([{"role": None, "content": "hi"}], "role: got null in message 0, wanted a string"),
        (["hi"], "messages: got str in message 0, wanted objects"),
        ([{"content": "x"}], "role: got none in message 0, wanted a string"),
        ([{"role": 1, "content": "x"}], "role: got int in message 0, wanted a string"),
        ([{"role": "user", "content": ("x",)}], "content: got tuple in message 0, wanted a string"),
        (
            [{"role": "user", "content": ["x"]}],
            "messages: got a part of type 'str' in message 0, w",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages: got a part of type 'image_url' in message 0, wanted parts of type text",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "text: got none in a part of message 0, wanted a string, as the part's type is text",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "text: got null in a part of message 0, wanted a string",
        ),
        ([{"role": "user", "content": None}], "content: got null in message 0, wanted text"),
        ([{"role": "assistant", "content": None}], "content: got null in message 0, wanted text"),
        ([{"role": "user"}], "content: got none in message 0, wanted text"),
        ([user()[0] | {"x": object()}], "messages: got object in message 0, wanted JSON values"),
        (user("x" * MOST_CHARACTERS), "messages: got over 4194304 characters"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        template(CHATML).render(messages)
    assert str(caught.value).startswith(words)


def test_parts_of_text_become_its_lines() -> None:
    parts = [{"type": "text", "text": each} for each in ("one", "two")]
    conversation = [{"role": "user", "content": parts}, {"role": "user", "content": []}]
    text = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert template(text).render(conversation) == "<one\ntwo><>"


def test_an_assistant_that_calls_tools_need_not_speak() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    silent = {"role": "assistant", "content": None, "tool_calls": calls}
    text = "{% for m in messages %}{{ m.content | default('-') }}{% endfor %}"
    assert template(text).render([*user("x"), silent]) == "x-"


def test_variables_of_a_request_reach_the_template() -> None:
    text = "{{ messages[0].content }}{% if thinking %} <{{ thinking.budget }}>{% endif %}"
    assert template(text).render(user("x")) == "x"
    assert template(text).render(user("x"), template_kwargs={"thinking": {"budget": 3}}) == "x <3>"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("messages", [], "chat_template_kwargs: got 'messages', wanted names of variables other"),
        ("tools", [], "chat_template_kwargs: got 'tools'"),
        ("bos_token", "x", "chat_template_kwargs: got 'bos_token'"),
        ("raise_exception", 1, "chat_template_kwargs: got 'raise_exception'"),
        ("a b", 1, "chat_template_kwargs: got 'a b'"),
        ("x", "x" * MOST_CHARACTERS, "chat_template_kwargs: got over"),
        ("x", {"y": object()}, "chat_template_kwargs: got object"),
    ],
)
def test_a_variable_replaces_nothing_and_is_plain(name: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ChatTemplate("{{ x }}", {"bos_token": "<s>"}, source="x").render(
            user("x"), template_kwargs={name: value}
        )
    assert str(caught.value).startswith(words)


def test_an_operators_file_takes_the_place_of_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text("theirs")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (tmp_path / "ours.jinja").write_text("{{ bos_token }} ours")
    loaded = ChatTemplate.load(folder, tmp_path / "ours.jinja")
    assert loaded is not None
    assert loaded.render(user("x")) == "<s> ours"
    with pytest.raises(CheckpointError, match=r"absent\.jinja: cannot be read \(No such file"):
        ChatTemplate.load(folder, tmp_path / "absent.jinja")


def test_deep_values_are_refused() -> None:
    value: list[Any] = []
    for _ in range(50):
        value = [value]
    with pytest.raises(InvalidInput, match="messages: got deeper nesting in message 0"):
        template(CHATML).render([{"role": "user", "content": "x", "extra": value}])


def test_the_longest_conversation_is_rendered() -> None:
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": "some words " * 90} for i in range(4000)
    ]
    for text in (CHATML, LLAMA, GEMMA, MISTRAL):
        assert len(template(text).render(messages)) > 3_900_000


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        stem, _, kind = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.{kind}").write_text(text)
    return folder


def test_the_folders_files_in_their_order(tmp_path: Path) -> None:
    def rendered() -> str | None:
        made = ChatTemplate.load(tmp_path)
        return made and made.render(user())

    assert rendered() is None
    write(tmp_path, chat_template_json={"chat_template": "legacy"})
    assert rendered() == "legacy"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    write(tmp_path, tokenizer_config_json={"chat_template": named})
    assert rendered() == "named"
    write(tmp_path, tokenizer_config_json={"chat_template": "config"})
    assert rendered() == "config"
    write(tmp_path, chat_template_jinja="jinja")
    assert rendered() == "jinja"


def test_special_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        tokenizer_config_json={"bos_token": {"content": "<s>"}, "pad_token": None},
        special_tokens_map_json={"bos_token": "old", "eos_token": "</s>"},
        chat_template_jinja="{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ cls_token }}",
    )
    made = ChatTemplate.load(tmp_path)
    assert made is not None
    assert made.render(user()) == "<s></s>"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"chat_template_jinja": "x" * (MOST_TEMPLATE_BYTES + 1)}, "bytes, wanted at most"),
        (
            {"tokenizer_config_json": {"chat_template": "x" * (MOST_TEMPLATE_BYTES + 1)}},
            "chat_template: got 131073 characters, wanted",
        ),
        ({"tokenizer_config_json": {"chat_template": 5}}, "chat_template: got int, wanted"),
        (
            {"tokenizer_config_json": {"chat_template": [{"name": "rag", "template": "x"}]}},
            r"chat_template: got \['rag'\], wanted one named 'default'",
        ),
        ({"tokenizer_config_json": {"chat_template": "{{"}}, "tokenizer_config.json: line 1"),
    ],
)
def test_a_folders_unusable_template_is_its_fault(
    tmp_path: Path, files: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        ChatTemplate.load(write(tmp_path, **files))
