"""The real openai client against a real server: every endpoint, errors, and clients that leave."""

from __future__ import annotations

import base64
import http.client
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tokenizers
import torch
from fusewire.errors import ConfigurationError
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.gateway import Gateway
from fusewire.serving.supervisor.server import Server
from fusewire_client import Client
from tokenizers import processors

from tests.engine.generating import END, tiny_folder, tiny_gpt2
from tests.server.asking import PATIENCE_S, Asker, Traffic, stderr_to, texts, until
from tests.server.conftest import CONTROL_KEY
from tests.server.recovery import Recovery
from tests.server.test_generate import LONG, cancelled, import_models, nothing_runs, slower_folder
from tests.tolerance import MODEL_FP32

END_TEXT = "<|endoftext|>"
TEMPLATE = (
    END_TEXT + "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MESSAGES: Any = [{"role": "user", "content": "How are you?"}]
RENDERED = END_TEXT + "user: How are you?\nassistant: "
ON_AND_ON: dict[str, Any] = {"max_tokens": LONG, "extra_body": {"ignore_eos": True}}


def chat_folder(folder: Path) -> Path:
    """The tiny GPT-2 with a chat template, and a tokenizer that begins each text as it does."""
    tiny_folder(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_TEXT} $0", special_tokens=[(END_TEXT, END)]
    )
    tokenizer.save(path)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(
    folder: Path, minilm: Path, tmp_path_factory: pytest.TempPathFactory, device: str
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    slow = slower_folder(tmp_path_factory.mktemp("slow"))
    import_models(root, device, tiny=folder, slow=slow, narrow=slow, minilm=minilm)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    # A test inference of the watchdog would take the one place in a queue.
    settings = ServerSettings(control_key=CONTROL_KEY, watch_interval_s=3600, **ports)
    with Server([root], settings, report=print) as server:
        yield server


@pytest.fixture(scope="module")
def asker(server: Server, device: str) -> Iterator[Asker]:
    with Asker(server, device) as asker:
        yield asker


@pytest.fixture(scope="module")
def api(server: Server) -> Iterator[openai.OpenAI]:
    assert server.openai is not None
    url = f"http://{server.openai.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="module")
def greedy(folder: Path) -> Callable[[str, int], str]:
    """What transformers adds to a prompt, which begins with the end of text before it."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(prompt: str, tokens: int) -> str:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        made = tiny_gpt2().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=END,
        )
        return tokenizer.decode(made[0, ids.shape[1] :].tolist())

    return text


def streamed(events: Any) -> str:
    return "".join(event.choices[0].text for event in events)


def test_the_models_that_generate_or_embed_are_listed(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["minilm", "narrow", "slow", "tiny"]
    assert api.models.retrieve("tiny").owned_by == "fusewire"


def test_a_completion_is_the_text_of_transformers_whole_and_streamed(
    api: openai.OpenAI, greedy: Callable[[str, int], str]
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "temperature": 0}
    answer = api.completions.create(**asked, max_tokens=20)
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == greedy("Hello", 20)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("Hello") + 1
    events = list(api.completions.create(**asked, max_tokens=20, stream=True))
    assert streamed(events) == answer.choices[0].text
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices[0].finish_reason == answer.choices[0].finish_reason
    assert api.completions.create(**asked).choices[0].text == greedy("Hello", 16)
    # A default is not what the request named: it gives way.
    longer = {**asked, "extra_body": {"min_tokens": 20}}
    assert api.completions.create(**longer).usage.completion_tokens >= 20


def test_prompts_of_one_request_are_answered_each(
    api: openai.OpenAI, greedy: Callable[[str, int], str]
) -> None:
    prompts = ["One", "Two", "Three"]
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompts, "temperature": 0, "max_tokens": 9}
    choices = api.completions.create(**asked).choices
    assert [choice.text for choice in choices] == [greedy(prompt, 9) for prompt in prompts]
    texts = ["", "", ""]
    for event in api.completions.create(**asked, stream=True):
        texts[event.choices[0].index] += event.choices[0].text
    assert texts == [choice.text for choice in choices]


def test_a_chat_is_rendered_by_the_folders_template_and_begins_once(
    api: openai.OpenAI, greedy: Callable[[str, int], str]
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0}
    answer = api.chat.completions.create(**asked, max_completion_tokens=12)
    message = answer.choices[0].message
    assert message.role == "assistant"
    assert message.content == greedy(RENDERED.removeprefix(END_TEXT), 12)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(RENDERED) - len(END_TEXT) + 1
    with_usage = {"include_usage": True}
    events = list(
        api.chat.completions.create(**asked, max_tokens=12, stream=True, stream_options=with_usage)
    )
    assert "".join(e.choices[0].delta.content or "" for e in events[:-1]) == message.content
    roles = [e.choices[0].delta.role for e in events[:-1]]
    assert roles == ["assistant"] + [None] * (len(roles) - 1)  # a late reader's tokens come as one
    usage = events[-1].usage
    assert events[-1].choices == []
    assert usage.total_tokens == answer.usage.total_tokens
    assert usage.prompt_tokens_details.cached_tokens == 16  # one page, which the first one wrote
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "How are you?"}]}]
    again = api.chat.completions.create(
        **asked | {"messages": in_parts}, max_tokens=12, user="me", response_format={"type": "text"}
    )
    assert again.choices[0].message.content == message.content


def test_a_seed_draws_the_same_texts_streamed_or_not(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "So", "n": 3, "seed": 5, "max_tokens": 8}
    texts = [choice.text for choice in api.completions.create(**asked).choices]
    assert len(set(texts)) == 3
    pieces = ["", "", ""]
    for event in api.completions.create(**asked, stream=True):
        pieces[event.choices[0].index] += event.choices[0].text
    assert pieces == texts


def test_stop_strings_end_a_text_and_are_none_of_it(
    api: openai.OpenAI, greedy: Callable[[str, int], str]
) -> None:
    text = greedy("Hello", 20)
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "temperature": 0}
    choice = api.completions.create(**asked, max_tokens=20, stop=[text[5]]).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(text[5])], "stop")


def test_logprobs_have_openais_shapes_streamed_or_not(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "temperature": 0, "logprobs": 2}
    whole = api.completions.create(**asked, max_tokens=6).choices[0].logprobs
    assert whole is not None
    assert whole.text_offset is not None
    assert whole.top_logprobs is not None
    assert whole.text_offset[0] == 0
    assert whole.text_offset == sorted(whole.text_offset)
    assert [max(each.values()) for each in whole.top_logprobs] == whole.token_logprobs
    assert {*map(len, whole.top_logprobs)} == {2}  # parts of characters too have names of their own
    pieces: list[Any] = []
    for event in api.completions.create(**asked, max_tokens=6, stream=True):
        pieces += event.choices[0].logprobs.tokens if event.choices[0].logprobs else []
    assert pieces == whole.tokens
    chat = api.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3, temperature=0
    )
    assert chat.choices[0].logprobs is not None
    places = chat.choices[0].logprobs.content or []
    assert len(places) <= 6
    for place in places:
        assert len(place.top_logprobs) == 3
        assert place.logprob == max(each.logprob for each in place.top_logprobs)
        assert bytes(place.bytes or []).decode("utf-8", "backslashreplace") == place.token


@pytest.mark.parametrize("by_ids", [False, True])
def test_echo_scores_a_prompt_as_evaluation_harnesses_ask(
    api: openai.OpenAI, folder: Path, by_ids: bool
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("Hello").ids
    answer = api.completions.create(
        model="tiny", prompt=ids if by_ids else "Hello", echo=True, logprobs=2, max_tokens=0
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 0)
    (choice,) = answer.choices
    spelled = END_TEXT if by_ids else ""  # what the client sent
    assert (choice.text, choice.finish_reason) == (f"{spelled}Hello", "length")
    logprobs: Any = choice.logprobs
    assert logprobs.tokens == [END_TEXT, *"Hello"]
    assert logprobs.text_offset == [0, *range(len(spelled), len(choice.text))]
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    with torch.no_grad():
        wanted = tiny_gpt2()(torch.tensor([ids])).logits[0].log_softmax(-1)
    scored = [wanted[place, token].item() for place, token in enumerate(ids[1:])]
    np.testing.assert_allclose(logprobs.token_logprobs[1:], scored, atol=MODEL_FP32)
    best = [max(places.values()) for places in logprobs.top_logprobs[1:]]
    np.testing.assert_allclose(best, wanted[:-1].max(-1).values, atol=MODEL_FP32)


def test_echo_puts_the_prompt_before_the_text_streamed_or_not(
    api: openai.OpenAI, greedy: Callable[[str, int], str]
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": ["One", "Two"], "echo": True}
    asked |= {"temperature": 0, "max_tokens": 5}
    wanted = [prompt + greedy(prompt, 5) for prompt in asked["prompt"]]
    whole: Any = api.completions.create(**asked, logprobs=0)
    assert [choice.text for choice in whole.choices] == wanted
    texts, tokens = ["", ""], [0, 0]
    for event in api.completions.create(**asked, logprobs=0, stream=True):
        (choice,) = event.choices
        texts[choice.index] += choice.text
        tokens[choice.index] += len(choice.logprobs.tokens) if choice.logprobs else 0
    assert texts == wanted
    assert tokens == [len(choice.logprobs.tokens) for choice in whole.choices]
    assert [choice.text for choice in api.completions.create(**asked).choices] == wanted
    silent = api.completions.create(**asked | {"max_tokens": 0})
    assert [choice.text for choice in silent.choices] == asked["prompt"]


def test_a_prompts_logprobs_have_vllms_shape(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"extra_body": {"prompt_logprobs": 1}, "max_tokens": 1}
    for answer in (
        api.completions.create(model="tiny", prompt="Hi", **asked),
        api.chat.completions.create(model="tiny", messages=MESSAGES, **asked),
    ):
        first, *others = answer.choices[0].prompt_logprobs  # type: ignore[union-attr]
        assert first is None
        assert answer.usage is not None
        assert len(others) == answer.usage.prompt_tokens - 1
        for place in others:
            assert {entry["rank"] for entry in place.values()} >= {1}
            assert all({"logprob", "decoded_token"} <= entry.keys() for entry in place.values())


def test_usage_so_far_comes_with_every_event(api: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 6}
    asked |= {"extra_body": {"ignore_eos": True}}
    events = list(api.completions.create(**asked, stream=True, stream_options=options))
    counted = [event.usage.completion_tokens for event in events if event.usage]
    assert len(counted) == len(events)
    assert counted == sorted(counted)
    assert counted[-1] == 6


def test_what_other_servers_parameters_leave_as_it_is_is_accepted(api: openai.OpenAI) -> None:
    harmless: dict[str, Any] = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "request_id": "x",
        "use_beam_search": False,
        "length_penalty": 1.0,
        "detokenize": True,
        "spaces_between_special_tokens": True,
    }
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 2, "extra_body": harmless}
    assert api.completions.create(prompt="x", **asked).choices
    assert api.chat.completions.create(messages=MESSAGES, **asked).choices


def test_embeddings_are_those_of_our_client_in_both_encodings(
    api: openai.OpenAI, server: Server
) -> None:
    texts = ["a cat sleeps", "the stock market fell", "日本語"]
    with Client(f"{server.endpoint.reachable}:{server.endpoint.grpc_port}") as client:
        wanted = client.embed(texts, model="minilm")
        alone = client.embed(texts[:1], model="minilm")  # on a GPU not bit-equal to one of three
    ask = api.embeddings.create
    floats = ask(model="minilm", input=texts, encoding_format="float")
    np.testing.assert_array_equal(np.array([e.embedding for e in floats.data], np.float32), wanted)
    spelled = ask(model="minilm", input=texts, encoding_format="base64").data
    bytes_ = b"".join(base64.b64decode(str(each.embedding)) for each in spelled)
    np.testing.assert_array_equal(np.frombuffer(bytes_, "<f4").reshape(wanted.shape), wanted)
    default = ask(model="minilm", input=texts[0], dimensions=wanted.shape[1])  # base64 underneath
    np.testing.assert_array_equal(np.float32(default.data[0].embedding), alone[0])
    assert default.usage.prompt_tokens == 5


BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -1}, "temperature", "temperature: got -1"),
    ({"temperature": -1, "stream": True}, "temperature", "temperature: got -1"),
    ({"top_p": 1.5}, "top_p", "top_p: got 1.5"),
    ({"n": 10**20}, "n", "n: got 1000"),
    ({"n": 0}, "n", "n: got 0"),
    ({"echo": 1}, "echo", "echo: got 1, wanted boolean"),
    ({"echo": True, "prompt": [1, 300]}, "prompt", "prompt: got id 300"),
    ({"echo": True, "prompt": [2**40]}, "prompt", f"prompt: got id {2**40}"),
    ({"echo": True, "prompt": "x" * 200}, "prompt", "prompt: got 201 tokens"),
    ({"echo": True, "logprobs": 21}, "logprobs", "logprobs: got 21"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens: got 0, wanted at least 1"),
    (
        {"stream": True, "extra_body": {"prompt_logprobs": 1}},
        "prompt_logprobs",
        "prompt_logprobs: got 1, wanted none with stream",
    ),
    ({"suffix": "end"}, "suffix", "suffix: got 'end'"),
    ({"logprobs": 21}, "logprobs", "logprobs: got 21"),
    ({"stop": ["a"] * 17}, "stop", "stop: got 17 entries"),
    (
        {"max_tokens": 4000},
        "max_tokens",
        "max_tokens: got 4000, wanted at most 126, the context length of 128 less the 2",
    ),
    ({"prompt": "x" * 200}, "prompt", "prompt: got 201 tokens"),
    ({"prompt": ["a", "x" * 200]}, "prompt[1]", "prompt[1]: got 201 tokens"),
    ({"prompt": [[65], [66], [67] * 200]}, "prompt[2]", "prompt[2]: got 200 tokens"),
    ({"prompt": [[65], [1 << 40]], "echo": True}, "prompt[1]", "prompt[1]: got id 1099511627776"),
    ({"prompt": [1, 300]}, "prompt", "prompt: got id 300"),
    ({"prompt": []}, "prompt", "prompt: got []"),
    ({"prompt": ["x", 1]}, "prompt", "prompt: got ['x', 1]"),
    ({"prompt": ["x"] * 129}, "prompt", "prompt: got 129 entries"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options: got it"),
    (
        {"stream": True, "stream_options": {"x": 1}},
        "stream_options.x",
        "stream_options.x: got 1, wanted a supported field; remove it",
    ),
    ({"extra_body": {"temprature": 1}}, "temprature", "temprature: got 1"),
    ({"extra_body": {"min_p": 2}}, "min_p", "min_p: got 2"),
    ({"model": "minilm"}, "model", "model: got minilm, which is for embed"),
]
BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"messages": []},
        "messages",
        "messages: got 0, wanted 1..4096 messages; send at least one",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text", "text: got none in"),
    ({"messages": [{"content": "x"}]}, "role", "role: got none in message 0"),
    ({"max_completion_tokens": 4000}, "max_completion_tokens", "max_completion_tokens: got 4000"),
    (
        {"messages": [{"role": "user", "content": None}]},
        "content",
        "content: got null in message 0",
    ),
    (
        {"extra_body": {"chat_template_kwargs": {"messages": []}}},
        "chat_template_kwargs",
        "chat_template_kwargs: got 'messages'",
    ),
    (
        {"extra_body": {"continue_final_message": True}},
        "continue_final_message",
        "continue_final_message: got true",
    ),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: got 2"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs: got 21"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "tools: got ["),
    ({"model": "slow"}, "model", "has no chat template"),
]


def refused(call: Callable[..., Any], status: int, **asked: Any) -> Any:
    """The body of the error that a call ends in."""
    with pytest.raises(openai.APIStatusError) as error:
        call(**asked)
    assert error.value.status_code == status, error.value
    body: Any = error.value.body
    assert set(body) == {"message", "type", "param", "code"}
    return body


def test_a_bad_request_names_its_parameter(api: openai.OpenAI) -> None:
    for call, asked, bad in (
        (api.completions.create, {"model": "tiny", "prompt": "x"}, BAD_COMPLETIONS),
        (api.chat.completions.create, {"model": "tiny", "messages": MESSAGES}, BAD_CHATS),
        (
            api.embeddings.create,
            {"model": "minilm", "input": "x"},
            [
                ({"dimensions": 385}, "dimensions", "dimensions: got 385, wanted at most 384"),
                ({"dimensions": 0}, "dimensions", "dimensions: got 0, wanted greater than"),
                ({"input": [[101, 102]]}, "input", "check_embedding_ctx_length=False"),
                ({"extra_body": {"prompt_name": "q"}}, "prompt_name", "prompt_name: got 'q'"),
                (
                    {"extra_body": {"truncate_prompt_tokens": 257}},
                    "truncate_prompt_tokens",
                    "truncate_prompt_tokens: got 257, wanted 1..256, or -1",
                ),
                ({"input": "word " * 600}, "input", "input: got 602 tokens"),
                ({"input": []}, "input", "input: got []"),
                ({"extra_body": {"poling": "cls"}}, "poling", "poling: got 'cls'"),
                ({"extra_body": {"texts": ["x"]}}, "texts", "texts: got ['x'], wanted one of"),
                ({"extra_body": {"timeout_s": "x"}}, "timeout_s", "timeout_s: got 'x', wanted one"),
                ({"model": "tiny"}, "model", "model: got tiny, which is for generate"),
            ],
        ),
    ):
        for given, param, words in bad:
            body = refused(call, 400, **asked | given)
            assert (body["param"], words in body["message"]) == (param, True), body
            assert body["type"] == "invalid_request_error"


def test_a_null_says_nothing(api: openai.OpenAI) -> None:
    nothing: Any = {"n": None, "stream": None, "max_tokens": None, "seed": None}
    assert api.completions.create(model="tiny", prompt="x", **nothing).choices
    assert api.chat.completions.create(model="tiny", messages=MESSAGES, **nothing).choices
    unsaid: Any = {"encoding_format": None, "dimensions": None}
    assert api.embeddings.create(model="minilm", input="x", extra_body=unsaid).data
    usage: Any = {"include_usage": None}
    streamed(api.completions.create(model="tiny", prompt="x", stream=True, stream_options=usage))


def test_an_unknown_model_is_not_found(api: openai.OpenAI) -> None:
    body = refused(api.completions.create, 404, model="absent", prompt="x")
    assert (body["param"], body["code"]) == ("model", "model_not_found")
    misspelt = refused(api.completions.create, 404, model="tinny", prompt="x")
    assert misspelt["message"].endswith(
        "wanted one of minilm, narrow, slow, tiny; did you mean tiny?"
    )
    assert refused(api.models.retrieve, 404, model="absent")["code"] == "model_not_found"


def test_a_body_that_is_none_is_refused_in_the_same_shape(server: Server) -> None:
    assert server.openai is not None
    as_json = {"Content-Type": "application/json"}
    as_form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl -d's own
    for headers, body, status, words in (
        ({}, b"{}", 400, b"Content-Type: application/json"),
        (as_form, b"{}", 400, b"Content-Type: got application/x-www-form-urlencoded, wanted"),
        (as_json, b"{", 400, b"ill-formed JSON"),
        (
            as_json | {"Content-Encoding": "gzip"},
            b"\x1f\x8b",
            400,
            b"Content-Encoding: got gzip, w",
        ),
        (as_json | {"Content-Encoding": "identity"}, b"{", 400, b"ill-formed JSON"),
        (as_json, b"[" * 100, 400, b"deeper nesting"),
        (as_json, b'{"model": NaN}', 400, b"got NaN"),
        (as_json, b'{"model": "tiny", "prompt": "\\ud800"}', 400, b"prompt: got a lone surrogate"),
        (as_json, b'{"model": "tiny", "prompt": ["a", "\\ud800"]}', 400, b"prompt[1]: got a lone"),
        (as_json, b'{"\\ud800": 1}', 400, b"body: got a key with a lone surrogate"),
        (as_json, b"{}", 400, b"model: not set"),
        (as_json, b" " * ((1 << 24) + 1), 413, b"body: got over"),
        (as_json, b" " * ((1 << 24) + 1), 413, b'"code":"request_too_large"'),
    ):
        connection = http.client.HTTPConnection(server.openai.address, timeout=30)
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        text = response.read()
        assert (response.status, words in text) == (status, True), text
        assert text.startswith(b'{"error":{"message":')
        connection.close()


def test_what_no_route_takes_is_refused_with_a_remedy(server: Server) -> None:
    assert server.openai is not None
    for method, path, status, allowed, words in (
        ("POST", "/chat/completions", 404, None, b"base_url ends in /v1"),
        ("GET", "/v1/completions", 405, "POST", b"method: got GET, wanted POST"),
        ("DELETE", "/v1/models/tiny", 405, "GET", b"method: got DELETE, wanted GET"),
    ):
        connection = http.client.HTTPConnection(server.openai.address, timeout=30)
        connection.request(method, path)
        response = connection.getresponse()
        assert (response.status, response.headers["Allow"]) == (status, allowed)
        text = response.read()
        assert words in text, text
        assert text.startswith(b'{"error":{"message":')
        connection.close()


def test_a_full_queue_says_when_to_come_again(api: openai.OpenAI, asker: Asker) -> None:
    def long() -> Any:
        return api.completions.create(model="narrow", prompt="x", stream=True, **ON_AND_ON)

    before = cancelled(asker, "narrow")
    with long() as running:
        next(iter(running))
        with ThreadPoolExecutor(1) as waiting:
            second = waiting.submit(long)
            until(lambda: asker.metric("fusewire_waiting", model="narrow") == 1)
            with pytest.raises(openai.RateLimitError) as error:
                api.completions.create(model="narrow", prompt="x", stream=True)
            assert error.value.response.headers["retry-after"] == "1"
            assert error.value.code == "rate_limit_exceeded"
            running.close()
            second.result(30).close()
    until(lambda: cancelled(asker, "narrow") == before + 2)
    until(lambda: nothing_runs(asker, "narrow"))


def test_time_that_ran_out_is_not_asked_for_again(api: openai.OpenAI) -> None:
    body: dict[str, Any] = {"ignore_eos": True, "timeout_seconds": 0.1}
    asked: dict[str, Any] = {"model": "slow", "prompt": "x", "max_tokens": LONG, "extra_body": body}
    error = refused(api.completions.create, 504, **asked)
    assert (error["param"], error["code"]) == ("timeout_seconds", "timeout")
    with pytest.raises(openai.InternalServerError) as caught:
        api.completions.create(**asked)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert error["message"].count("try again later") <= 1
    with pytest.raises(openai.APIError, match="timeout: got more work"):
        list(api.completions.create(**asked, stream=True))


def test_a_closed_stream_frees_its_slot_and_pages(api: openai.OpenAI, asker: Asker) -> None:
    for prompt, count in (("Away", 1), (["Both", "away"], 2)):
        wanted = cancelled(asker) + count
        with api.completions.create(
            model="slow", prompt=prompt, stream=True, **ON_AND_ON
        ) as stream:
            next(iter(stream))
            until(lambda: asker.metric("fusewire_running", model="slow") > 0)
        until(lambda wanted=wanted: cancelled(asker) == wanted)
        until(lambda: nothing_runs(asker, "slow"))


def test_a_client_that_does_not_wait_frees_them_too(api: openai.OpenAI, asker: Asker) -> None:
    before = cancelled(asker)
    hasty = api.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        hasty.completions.create(model="slow", prompt="Never mind", **ON_AND_ON)
    until(lambda: cancelled(asker) == before + 1)
    until(lambda: nothing_runs(asker, "slow"))


def test_20_streams_at_once_are_each_as_if_alone(api: openai.OpenAI, asker: Asker) -> None:
    def ask(number: int, stream: bool) -> Any:
        return api.completions.create(
            model="tiny", prompt=f"No. {number}", temperature=0, max_tokens=60, stream=stream
        )

    alone = [ask(number, False).choices[0].text for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(lambda number: streamed(ask(number, True)), range(20)))
    assert texts == alone
    until(lambda: nothing_runs(asker, "tiny"))


def test_a_model_that_is_not_loaded_is_not_ready(api: openai.OpenAI, server: Server) -> None:
    server.unload("narrow")
    try:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as error:
                api.completions.create(model="narrow", prompt="x", stream=stream)
            assert error.value.status_code == 503
            assert error.value.response.headers["retry-after"] == "1"
    finally:
        server.load("narrow")
    assert api.completions.create(model="narrow", prompt="x").choices


def test_a_process_that_dies_ends_the_requests_it_had(
    api: openai.OpenAI, server: Server, asker: Asker
) -> None:
    asked: dict[str, Any] = {"model": "slow", "prompt": "x", **ON_AND_ON, "timeout": PATIENCE_S}
    (stub,) = [stub.pid for stub in server.process.stubs() if stub.model == "slow"]
    recovery = Recovery(server)
    with ThreadPoolExecutor(1) as pool, api.completions.create(**asked, stream=True) as stream:
        next(iter(stream))
        body = pool.submit(refused, api.completions.create, 503, **asked)
        until(lambda: asker.metric("fusewire_running", model="slow") == 2)
        os.kill(stub, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="try again later") as error:
            list(stream)
        assert error.value.type == body.result(PATIENCE_S)["type"] == "service_unavailable"
    until(lambda: recovery)
    again = api.with_options(max_retries=8).completions.create
    assert again(model="slow", prompt="x", max_tokens=2).choices


def test_an_endpoint_that_closes_says_so_to_requests_it_cannot_wait_for(
    server: Server, asker: Asker, tmp_path: Path
) -> None:
    entries = {model: server.entry(model) for model in server.models}
    settings = server.settings.model_copy(update={"exit_timeout_s": 1})
    second = Gateway(server.endpoint, 0, entries, server.pins.get, settings, print)
    with stderr_to(tmp_path / "log"):
        second.start()
        second.open()
    asked: dict[str, Any] = {"model": "slow", "prompt": "x", "n": 4, **ON_AND_ON}
    url = f"http://{second.address}/v1"
    with (
        ThreadPoolExecutor(1) as pool,
        openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client,
        client.completions.create(**asked, stream=True) as stream,
    ):
        next(iter(stream))
        body = pool.submit(refused, client.completions.create, 503, **asked)
        gauges = ("fusewire_running", "fusewire_waiting")  # of sequences: of both requests
        until(lambda: sum(asker.metric(gauge, model="slow") for gauge in gauges) == 2 * asked["n"])
        closing = threading.Thread(target=second.close)
        closing.start()
        with pytest.raises(openai.APIError, match="server: it stopped before") as error:
            list(stream)
        assert error.value.type == body.result(PATIENCE_S)["type"] == "service_unavailable"
        closing.join(PATIENCE_S)
    assert "uvicorn" not in (tmp_path / "log").read_text()
    until(lambda: nothing_runs(asker, "slow"))


def test_a_killed_endpoint_comes_back_and_the_models_never_stopped(
    server: Server, api: openai.OpenAI, asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.openai is not None
    assert server.openai._process is not None
    stubs = server.process.stubs()
    healed = server.watchdog.reloads + server.watchdog.restarts
    with Traffic(asker, "minilm", texts("still here")) as traffic:
        os.kill(server.openai._process.pid, signal.SIGKILL)
        again = api.with_options(max_retries=2).completions.create
        assert again(model="tiny", prompt="x", max_tokens=2).choices
        traffic.more(5)
    assert "the OpenAI endpoint ended (signal SIGKILL)" in capsys.readouterr().out
    assert traffic.errors == []
    assert server.process.stubs() == stubs
    assert server.watchdog.reloads + server.watchdog.restarts == healed


def test_models_are_healed_while_the_endpoint_stands_still(
    server: Server, api: openai.OpenAI, asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.openai is not None
    assert server.openai._process is not None
    recovery, said = Recovery(server), [""]

    def healing() -> bool:
        said[0] += capsys.readouterr().out
        return "loading the model again" in said[0]

    (stub,) = [stub.pid for stub in server.process.stubs() if stub.model == "minilm"]
    os.kill(server.openai._process.pid, signal.SIGSTOP)
    try:
        os.kill(stub, signal.SIGKILL)
        until(healing)
        assert "the OpenAI endpoint ended" not in said[0]  # it is replaced when it stood for 10 s
        until(lambda: recovery)
        assert asker.ask("minilm", texts("here again"))
    finally:
        os.kill(server.openai._process.pid, signal.SIGCONT)
    assert api.completions.create(model="tiny", prompt="x", max_tokens=2).choices


def test_a_port_in_use_is_named_before_anything_starts(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": port}
        with pytest.raises(ConfigurationError, match=f"openai-port: got 127.0.0.1:{port}"):
            Server([folder], ServerSettings(**ports))


def test_a_port_given_twice_is_named_before_anything_starts(folder: Path) -> None:
    words = "openai-port: got 4321, wanted another port than grpc-port"
    with pytest.raises(ConfigurationError, match=words):
        Server([folder], ServerSettings(http_port=0, grpc_port=4321, openai_port=4321))


def test_an_ipv6_address_is_refused_before_anything_starts(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="host: got ::1, wanted an IPv4 address"):
        Server([folder], ServerSettings(host="::1", http_port=0, grpc_port=0, metrics_port=0))
