"""Prompts become ids that the model knows, or are rejected under the name of their input."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.errors import InvalidInput
from fusewire.generation.chat import Chat
from fusewire.generation.checks import read_parameters
from fusewire.generation.limits import GenerationLimits, SourceLimits
from fusewire.generation.parameter_reader import LONGEST_KEPT, ParameterReader
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import max_new_tokens, read_prompt
from fusewire.tasks import generate
from fusewire.tasks.generate import RequestReader, read
from fusewire.text.tokenizer import Tokenizer

from tests.engine.generating import END, byte_tokenizer

LIMITS = GenerationLimits(
    vocab_size=END, max_length=200, max_request_tokens=400, max_sequences=4
)  # the tokenizer has one token more


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("bytes")
    byte_tokenizer(folder)
    return Tokenizer.required(folder)


def test_a_text_and_its_ids_are_the_same_prompt(tokenizer: Tokenizer) -> None:
    parameters = read_parameters({"max_tokens": 7}, LIMITS)
    of_text = read_prompt("some text", parameters, tokenizer, LIMITS)
    assert tokenizer.decode(of_text.token_ids) == "some text"
    assert of_text == read_prompt(of_text.token_ids, parameters, tokenizer, LIMITS)
    assert of_text.max_new_tokens == 7


def test_a_prompt_leaves_room_for_a_token_unless_none_is_wanted(tokenizer: Tokenizer) -> None:
    one = read_prompt([1] * 199, read_parameters({}, LIMITS), tokenizer, LIMITS)
    assert one.max_new_tokens == 1
    none = read_parameters({"max_tokens": 0, "prompt_logprobs": 0}, LIMITS)
    assert read_prompt([1] * 200, none, tokenizer, LIMITS).max_new_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "field", "words"),
    [
        ("x" * 200, "", "text_input: got 200 tokens, wanted at most 199, which leave room"),
        ("x" * 200_000, "", "text_input: got 200000 characters, at least "),
        ([1] * 200, "", "input_ids: got 200 tokens, wanted at most 199"),
        ([1] * 200, "messages", "messages: got 200 tokens, wanted at most 199"),
        ("", "", "text_input: got no tokens, wanted at least one"),
        ([], "", "input_ids: got no tokens"),
        (b"bytes", "", "input_ids: got no tokens"),
        ([1.5], "", "input_ids: got 1.5 at 0, wanted token ids, which are whole numbers"),
        (3, "", "input_ids: got int, wanted token ids"),
        (np.array(3), "", "input_ids: got ndarray, wanted token ids"),
        ([3, "a"], "", "input_ids: got 'a' at 1, wanted token ids"),
        ([3, True], "", "input_ids: got true at 1, wanted token ids"),
        ([np.array([3, 4])], "", "input_ids: got array([3, 4]) at 0, wanted token ids"),
        ([3, -1], "", f"input_ids: got id -1, wanted ids 0..{END - 1}, the model's vocabulary"),
        ([3, END], "messages", f"messages: got id {END}, wanted ids 0..{END - 1}"),
        (
            "<|endoftext|>",
            "",
            f"text_input: got the token '<|endoftext|>' with id {END}, wanted ids 0..{END - 1}",
        ),
    ],
)
def test_what_is_wrong_is_named(tokenizer: Tokenizer, prompt: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_prompt(prompt, read_parameters({}, LIMITS), tokenizer, LIMITS, field)
    assert str(caught.value).startswith(words)


SOURCES = replace(LIMITS, source=SourceLimits(vocab_size=END + 1, max_length=300, reason="why"))


def test_a_source_has_a_length_and_a_vocabulary_of_its_own(tokenizer: Tokenizer) -> None:
    parameters = read_parameters({}, SOURCES)
    source = read_prompt([END] * 300, parameters, tokenizer, SOURCES)
    assert source.max_new_tokens == 199  # without the first token
    for prompt in ([1] * 301, "x" * 301):
        with pytest.raises(InvalidInput, match="got 301 tokens, wanted at most 300, why"):
            read_prompt(prompt, parameters, tokenizer, SOURCES)
    with pytest.raises(InvalidInput, match=f"got id {END + 1}, wanted ids 0..{END}"):
        read_prompt([END + 1], parameters, tokenizer, SOURCES)
    with pytest.raises(InvalidInput) as caught:
        read_prompt([1], read_parameters({"max_tokens": 200}, SOURCES), tokenizer, SOURCES)
    assert str(caught.value) == (
        "max_tokens: got 200, wanted at most 199, the context length of 200 less the token that "
        "the decoder begins with; lower it"
    )


def test_no_tokens_are_refused_with_a_remedy_that_the_model_takes() -> None:
    for limits, remedy in ((LIMITS, "raise it, or ask for prompt_logprobs"), (SOURCES, "raise it")):
        with pytest.raises(InvalidInput) as caught:
            read_parameters({"max_tokens": 0}, limits)
        assert str(caught.value).endswith(f"as nothing would be answered; {remedy}")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target_prefix": "x"}, "target_prefix: got 200 tokens that the decoder begins with"),
        ({"decoder_input_ids": (1,)}, "decoder_input_ids: got 200 tokens that the decoder begins"),
        ({"prompt_ids": (1,)}, "prompt_ids: got 200 tokens that the decoder begins with"),
        ({}, "max_length: got 200 tokens .*, wanted at most 199, which leave room .*; raise it"),
    ],
    ids=str,
)
def test_what_leaves_no_room_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        max_new_tokens(GenerationParameters(**given), 1, SOURCES, 200)


def test_a_source_never_leads_the_text() -> None:
    inputs: dict[str, Any] = {"text_input": np.array([b"source"], np.object_)}
    assert read(inputs, {}, ParameterReader(LIMITS)).prefix == "source"
    assert read(inputs, {}, ParameterReader(SOURCES)).prefix == ""
    excluded = inputs | {"exclude_input_in_output": np.array([True])}
    assert read(excluded, {}, ParameterReader(SOURCES)).prefix == ""
    with pytest.raises(
        InvalidInput, match="exclude_input_in_output: got false, wanted true for an encoder-decoder"
    ):
        read(inputs | {"exclude_input_in_output": np.array([False])}, {}, ParameterReader(SOURCES))


def test_requests_that_say_the_same_beside_their_prompts_share_what_is_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def text(*values: str) -> Any:
        return np.array([value.encode() for value in values], object)

    def flag(*values: bool) -> Any:
        return np.array(values)

    wanted = {"return_logprobs": flag(True), "return_alignment": flag(False)}
    said: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"stream": flag(True)}, {}),
        ({"stream": flag(False)}, {}),
        ({"sampling_parameters": text('{"max_tokens": 3, "logprobs": 1}')} | wanted, {}),
        ({"sampling_parameters": text('{"max_tokens": 4}')}, {}),
        ({"sampling_parameters": text('{"max_tokens": 4}')}, {"seed": 3}),
        ({"sampling_parameters": text('{"seed": 3, "stop": "%s"}' % ("x" * LONGEST_KEPT))}, {}),
        ({"sampling_parameters": text("{"), "stream": flag(True)}, {}),
        ({"sampling_parameters": text("{}", "{}")}, {}),
        ({"exclude_input_in_output": flag(False)}, {}),
        ({"stream": flag(True, True)}, {}),
        ({"unknown": flag(True)}, {}),
    ]
    prompts = [
        {"text_input": text("a")},
        {"text_input": text("")},
        {"text_input": text("b c")},
        {"input_ids": np.array([1, 2])},
        {"input_ids": np.array([3])},
        {"input_ids": np.array([3], np.int32)},
        {"text_input": text("a", "b")},
        {"text_input": text("a"), "input_ids": np.array([3])},
    ]
    reader = ParameterReader(LIMITS)
    requests = RequestReader(reader, Chat(lambda *given, **more: []))
    found_before = 0
    monkeypatch.setattr(generate, "read", lambda *its: wholly.append(its) or read(*its))
    for tensors, parameters in [*said, *said]:
        for prompt in prompts:
            wholly: list[Any] = []
            try:
                whole = read(prompt | tensors, parameters, reader)
            except InvalidInput as error:
                with pytest.raises(InvalidInput, match=f"^{re.escape(str(error))}$"):
                    requests.read(prompt | tensors, parameters)
            else:
                assert requests.read(prompt | tensors, parameters) == whole
                found_before += not wholly
    # Five kinds of parameters with texts and ids, one with texts only: all but the first of each,
    # then all.
    assert found_before == (5 * (2 + 1) + 2) + (5 * (3 + 2) + 3)


def test_a_folders_beams_are_those_of_streams_too() -> None:
    inputs: dict[str, Any] = {"text_input": np.array([b"text"], np.object_)}
    streamed = inputs | {"stream": np.array([True])}
    folder = {"num_beams": 4, "length_penalty": 2.0}
    assert read(inputs, {}, ParameterReader(LIMITS, folder)).parameters.num_beams == 4
    assert read(streamed, {}, ParameterReader(LIMITS, folder)).parameters.num_beams == 4
    assert read(streamed, {"num_beams": 3}, ParameterReader(LIMITS)).stream
