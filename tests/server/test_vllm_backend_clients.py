"""Clients of vllm_backend are answered as they expect: the requests that its sample client, its
README and its own tests make, each made here in the same way."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
from fusewire.serving.config import ServerSettings
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests.server.asking import Asker, until
from tests.server.conftest import CONTROL_KEY
from tests.server.streaming import events, generate
from tests.server.test_generate import ANY_ERROR, import_models, nothing_runs, slower_folder
from tests.server.test_openai import END_TEXT, MESSAGES, RENDERED, chat_folder

WITHIN_S = 60
TOKENS = 16  # vLLM's default, which its tests count on
GREEDY = {"temperature": "0", "top_p": "1"}  # they send numbers as strings
PROMPTS = ["The most dangerous animal is", "The capital of France is", "The future of AI is"]
FLAGS = (None, True, False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    chat = chat_folder(tmp_path_factory.mktemp("chat"))
    config = json.loads((chat / "generation_config.json").read_text())
    config["max_new_tokens"] = TOKENS
    (chat / "generation_config.json").write_text(json.dumps(config))
    import_models(root, device, tiny=chat, slow=slower_folder(tmp_path_factory.mktemp("slow")))
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    settings = ServerSettings(control_key=CONTROL_KEY, watch_interval_s=3600, **ports)
    with Server([root], settings, report=print) as server:
        yield server


@pytest.fixture
def address(server: Server) -> str:
    return f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"


def tensor(kind: Any, name: str, value: str | bool) -> Any:
    if isinstance(value, bool):
        made = kind.InferInput(name, [1], "BOOL")
        made.set_data_from_numpy(np.array([value], dtype=bool))
    else:
        made = kind.InferInput(name, [1], "BYTES")
        made.set_data_from_numpy(np.array([value.encode("utf-8")], dtype=np.object_))
    return made


def request(kind: Any, prompt: str, **given: Any) -> list[Any]:
    """The inputs in the order of the sample client; `sampling_parameters` as a dictionary, None for
    an input that is not sent."""
    values = {"text_input": prompt, **given}
    return [
        tensor(kind, name, json.dumps(value) if isinstance(value, dict) else value)
        for name, value in values.items()
        if value is not None
    ]


def answers(address: str, model: str, inputs: list[Any], **sent: Any) -> list[Any]:
    """Every response on a stream, and every error."""
    events: list[Any] = []
    with grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: events.append(error or result))
        client.async_stream_infer(model, inputs, **sent)
        client.stop_stream()
    return events


def text(responses: list[Any]) -> str:
    return "".join(each.as_numpy("text_output")[0].decode() for each in responses)


@pytest.fixture(scope="module")
def continued(server: Server) -> Callable[[str], str]:
    """What is greedily added to a prompt, asked for without any of this module's ways."""

    def ask(prompt: str) -> str:
        body = {"text_input": prompt, "exclude_input_in_output": True}
        status, answer = generate(server, "tiny", body)
        assert status == 200
        assert answer["text_output"]
        return str(answer["text_output"])

    return ask


@pytest.mark.parametrize("stream", [False, True])
def test_the_sample_client(address: str, stream: bool) -> None:
    """Many prompts on one asyncio stream, parameters of the request beside the tensor of them."""
    sampling = {"temperature": "0.1", "top_p": "0.95", "max_tokens": "100"}
    prompts = ["One\n", "Two\n", "Three"]  # lines of a file; the model has 128 positions
    results: dict[str, list[bytes]] = {}

    async def requests() -> Any:
        for number, prompt in enumerate(prompts):
            results[str(number)] = []
            yield {
                "model_name": "tiny",
                "inputs": request(grpc_aio, prompt, stream=stream, sampling_parameters=sampling),
                "outputs": [grpc_aio.InferRequestedOutput("text_output")],
                "request_id": str(number),
                "parameters": sampling,
            }

    async def converse() -> None:
        async with grpc_aio.InferenceServerClient(address) as client:
            async for result, error in client.stream_infer(requests(), stream_timeout=WITHIN_S):
                assert error is None, error
                results[result.get_response().id] += list(result.as_numpy("text_output"))

    asyncio.run(converse())
    for prompt, pieces in zip(prompts, results.values(), strict=True):
        assert b"".join(pieces).startswith(b"" if stream else prompt.encode())
        assert len(b"".join(pieces)) > (0 if stream else len(prompt))


@pytest.mark.parametrize("as_tensor", [True, False])
def test_parameters_as_strings_as_a_tensor_or_not(
    address: str, continued: Callable[[str], str], as_tensor: bool
) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: events.put(error or result))
        for number, prompt in enumerate(PROMPTS):
            tensors = GREEDY if as_tensor else None
            client.async_stream_infer(
                "tiny",
                request(grpc, prompt, stream=False, sampling_parameters=tensors),
                request_id=str(number),
                outputs=[grpc.InferRequestedOutput("text_output")],
                parameters=GREEDY,
            )
        got = [events.get(timeout=WITHIN_S) for _ in PROMPTS]
        client.stop_stream()
    texts = {each.get_response().id: text([each]) for each in got}
    assert [texts[str(n)] for n in range(3)] == [prompt + continued(prompt) for prompt in PROMPTS]


def test_the_tensor_goes_before_the_parameters_key_by_key(address: str) -> None:
    inputs = request(
        grpc,
        PROMPTS[0],
        stream=False,
        sampling_parameters={"max_tokens": "3", "ignore_eos": "true"},
        return_num_output_tokens=True,
    )
    (response,) = answers(address, "tiny", inputs, parameters={"max_tokens": "9", **GREEDY})
    assert response.as_numpy("num_output_tokens") == 3


@pytest.mark.parametrize("exclude", FLAGS)
def test_the_prompt_leads_unless_it_is_excluded(
    address: str, continued: Callable[[str], str], exclude: bool | None
) -> None:
    inputs = request(
        grpc,
        PROMPTS[1],
        stream=False,
        sampling_parameters=GREEDY,
        exclude_input_in_output=exclude,
    )
    wanted = continued(PROMPTS[1]) if exclude else PROMPTS[1] + continued(PROMPTS[1])
    assert text(answers(address, "tiny", inputs, parameters=GREEDY)) == wanted


def test_stream_may_be_left_out(address: str, continued: Callable[[str], str]) -> None:
    (response,) = answers(address, "tiny", request(grpc, PROMPTS[2]))
    assert text([response]) == PROMPTS[2] + continued(PROMPTS[2])


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("stream", [True, False])
def test_outputs_beside_the_text(address: str, stream: bool, flag: bool | None) -> None:
    names = ("finish_reason", "cumulative_logprob", "num_input_tokens", "num_output_tokens")
    sampling = {**GREEDY, "ignore_eos": True}
    inputs = request(
        grpc,
        "In this example,",
        stream=stream,
        sampling_parameters=sampling,
        **{f"return_{name}": flag for name in names},
    )
    responses = answers(address, "tiny", inputs, parameters=GREEDY)
    values = {name: [each.as_numpy(name) for each in responses] for name in names}
    if not flag:
        assert all(value is None for each in values.values() for value in each)
        return
    reasons = [value[0].decode() for value in values["finish_reason"]]
    assert reasons == ["None"] * (len(responses) - 1) + ["length"]
    sums = [0.0, *(float(value[0]) for value in values["cumulative_logprob"])]
    assert all(one != other for one, other in pairwise(sums))
    assert {int(value) for value in values["num_input_tokens"]} == {len("In this example,") + 1}
    assert sum(int(value[0]) for value in values["num_output_tokens"]) == TOKENS


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, "0", "2"])
def test_logprobs_are_json(address: str, stream: bool, logprobs: str | None) -> None:
    sampling = GREEDY if logprobs is None else {**GREEDY, "logprobs": logprobs}
    inputs = request(
        grpc,
        "In this example,",
        stream=stream,
        sampling_parameters=sampling,
        return_logprobs=True,
        return_num_output_tokens=True,
    )
    for response in answers(address, "tiny", inputs, parameters=sampling):
        places = json.loads(response.as_numpy("logprobs")[0])
        if logprobs is None:
            assert places is None
            continue
        assert len(places) == response.as_numpy("num_output_tokens")[0]
        for place in places:
            assert 1 <= len(place) <= int(logprobs) + 1
            for token, entry in place.items():
                assert token.isdigit()
                assert isinstance(entry["logprob"], float)
                assert isinstance(entry["decoded_token"], str)
                assert isinstance(entry["rank"], int)
            assert sum(entry["rank"] == 1 for entry in place.values()) == 1


def test_a_token_far_from_the_likeliest_has_its_rank(address: str) -> None:
    sampling = {"temperature": "100", "logprobs": "1", "seed": "0", "ignore_eos": "true"}
    inputs = request(grpc, "So", sampling_parameters=sampling, return_logprobs=True)
    (response,) = answers(address, "tiny", inputs)
    ranks = [
        [entry["rank"] for entry in place.values()]
        for place in json.loads(response.as_numpy("logprobs")[0])
    ]
    assert len(ranks) == TOKENS
    assert all(likeliest == [1] for _, *likeliest in ranks if likeliest)
    assert max(taken for taken, *_ in ranks) > 2


def test_http_as_the_readme_sends_it(server: Server, continued: Callable[[str], str]) -> None:
    prompt = PROMPTS[0]
    parameters: dict[str, Any] = {"stream": False, "temperature": 0}
    whole = {"text_input": prompt, "parameters": parameters}
    assert generate(server, "tiny", whole)[1]["text_output"] == prompt + continued(prompt)
    without = {"text_input": prompt, "parameters": {**parameters, "exclude_input_in_output": True}}
    assert generate(server, "tiny", without)[1]["text_output"] == continued(prompt)
    streamed = {"text_input": prompt, "parameters": {"stream": True, "temperature": "0"}}
    pieces = [event["text_output"] for event in events(server, "tiny", streamed)]
    assert "".join(pieces) == continued(prompt)


@pytest.mark.parametrize(
    ("prompt", "given", "words"),
    [
        ("x", {"sampling_parameters": {"no_such": "1"}}, "no_such: got '1'"),
        (
            "x",
            {"sampling_parameters": {"temperature": "warm"}},
            "temperature: got 'warm'",
        ),
        ("x", {"sampling_parameters": {"use_beam_search": "x"}}, "use_beam_search: got 'x'"),
        ("x", {"sampling_parameters": "not JSON"}, "sampling_parameters: got ill-formed JSON"),
        ("x", {"stream": True, "exclude_input_in_output": False}, "exclude_input_in_output: got"),
        ("x" * 200, {}, "text_input: got 201 tokens, wanted at most 127"),
    ],
)
def test_what_is_wrong_is_an_error_on_the_stream(
    address: str, server: Server, prompt: str, given: dict[str, Any], words: str
) -> None:
    (error,) = answers(address, "tiny", request(grpc, prompt, **given))
    assert isinstance(error, InferenceServerException)
    assert words in error.message()
    body = {"text_input": prompt, **given}
    if isinstance(given.get("sampling_parameters"), dict):
        body["sampling_parameters"] = json.dumps(given["sampling_parameters"])
    status, answer = generate(server, "tiny", body)
    assert (status, words in answer["error"]) == (ANY_ERROR, True)


def test_an_empty_prompt_is_what_the_tokenizer_begins_a_text_with(address: str) -> None:
    (response,) = answers(address, "tiny", request(grpc, "", sampling_parameters=GREEDY))
    assert text([response])
    without = {**GREEDY, "add_special_tokens": "false"}
    (error,) = answers(address, "tiny", request(grpc, "", sampling_parameters=without))
    assert isinstance(error, InferenceServerException)
    assert error.message().startswith("text_input: got no tokens")


def test_cancelling_a_stream_of_a_hundred_requests(address: str, server: Server) -> None:
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sampling = {"temperature": "0.75", "top_p": "0.9", "ignore_eos": "true"}
    with grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: events.put(error or result))
        for number in range(100):
            prompt = f"Write a poem of at least {100 + number} words."
            client.async_stream_infer(
                "slow",
                request(grpc, prompt, stream=False, sampling_parameters=sampling),
                request_id=str(number),
                outputs=[grpc.InferRequestedOutput("text_output")],
                parameters=sampling,
            )
        client.stop_stream(cancel_requests=True)
    error = events.get(timeout=WITHIN_S)
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.CANCELLED"
    assert events.empty()
    with Asker(server) as asker:
        until(lambda: nothing_runs(asker, "slow"))


def test_messages_are_rendered_by_the_folders_template(
    server: Server, address: str, continued: Callable[[str], str]
) -> None:
    """Beyond vllm_backend, whose clients render their conversations themselves."""
    rendered = RENDERED.removeprefix(END_TEXT)  # the tokenizer begins a text with it
    body = {"messages": json.dumps(MESSAGES), "return_num_input_tokens": True}
    status, answer = generate(server, "tiny", body)
    assert (status, answer.get("text_output")) == (200, continued(rendered)), answer
    assert answer["num_input_tokens"] == 1 + len(rendered)
    streamed = request(grpc, "", stream=True, messages=json.dumps(MESSAGES))[1:]
    assert text(answers(address, "tiny", streamed)) == continued(rendered)
    status, answer = generate(server, "slow", body)
    assert (status, "no chat template" in answer["error"]) == (ANY_ERROR, True)
