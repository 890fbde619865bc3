"""A real server that generates: over HTTP, as streams, many at once, and whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from fusewire.engine.generation_memory import PAGE_SIZE
from fusewire.serving.asking import AskFailed, ask, pieces
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor import processes
from fusewire.serving.supervisor.server import Server
from fusewire.serving.supervisor.workplace import SHARED_MEMORY
from tritonclient.utils import InferenceServerException

from tests.engine.generating import END, tiny_folder, tiny_gpt2
from tests.server.asking import Asker, until
from tests.server.conftest import CONTROL_KEY
from tests.server.recovery import Recovery
from tests.server.streaming import Stream, asked, generate, generate_stream

PROMPTS = [f"Number {number} of the prompts" + "!" * number for number in range(32)]
LONG = 6000  # tokens of the slow model: a second; of the slower one: ten
# What tritonserver's `generate` makes of a model's error, whichever its code; gRPC streams have the
# words alone.
ANY_ERROR = 400


def slow_folder(folder: Path, hidden: int = 32, layers: int = 1) -> Path:
    """As the tiny one, with room for long texts and a token that begins each."""
    tiny_folder(folder)
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=8192,
        n_embd=hidden,
        n_layer=layers,
        n_head=2,
        eos_token_id=END,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", END)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def slower_folder(folder: Path) -> Path:
    """Whose long text is not at its end before its client leaves, nor before the metrics show it,
    a second late, however fast the machine is or how busy."""
    return slow_folder(folder, hidden=256, layers=4)


def import_models(root: Path, device: str, **folders: Path) -> None:
    """In fp32; the model `narrow` has room for one request that runs and one that waits."""
    room = {"narrow": {"max_sequences": 1, "max_waiting": 1}}
    for name, folder in folders.items():
        import_folder(
            folder,
            root,
            name=name,
            settings={"dtype": "float32", **room.get(name, {})},
            deployment=Deployment(device=device),
            link=True,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    slow = slower_folder(tmp_path_factory.mktemp("slow"))
    import_models(root, device, tiny=folder, slow=slow, narrow=slow)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    settings = ServerSettings(
        control_key=CONTROL_KEY, watch_interval_s=1, exit_timeout_s=3, **ports
    )
    with Server([root], settings, report=print) as server:
        yield server


@pytest.fixture(scope="module")
def asker(server: Server, device: str) -> Iterator[Asker]:
    with Asker(server, device) as asker:
        yield asker


@pytest.fixture(scope="module")
def greedily(folder: Path) -> Callable[[list[str], int], list[str]]:
    """What transformers adds to each of the prompts."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(direction="left", pad_id=END)

    def texts(prompts: list[str], tokens: int) -> list[str]:
        rows = tokenizer.encode_batch(prompts)
        ids = torch.tensor([row.ids for row in rows])
        made = tiny_gpt2().generate(
            ids,
            attention_mask=torch.tensor([row.attention_mask for row in rows]),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=END,
        )
        return tokenizer.decode_batch(made[:, ids.shape[1] :].tolist())

    return texts


@pytest.fixture(scope="module")
def greedy(greedily: Callable[[list[str], int], list[str]]) -> Callable[[str, int], str]:
    """What transformers adds to a prompt."""
    return lambda prompt, tokens: greedily([prompt], tokens)[0]


def nothing_runs(asker: Asker, model: str) -> bool:
    gauges = ("fusewire_running", "fusewire_waiting", "fusewire_kv_pages_used_ratio")
    return all(asker.metric(name, model=model) == 0 for name in gauges)


def test_http_answers_with_the_text_of_transformers(
    server: Server, greedy: Callable[[str, int], str]
) -> None:
    for prompt in PROMPTS[:4]:
        status, answer = generate(server, "tiny", asked(prompt, max_new_tokens=20))
        assert status == 200
        assert answer["text_output"] == prompt + greedy(prompt, 20)


def test_http_streams_the_text_in_pieces(server: Server, greedy: Callable[[str, int], str]) -> None:
    body = asked(PROMPTS[1], max_new_tokens=20) | {
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    events = list(generate_stream(server, "tiny", body))
    assert "".join(event["text_output"] for event in events) == greedy(PROMPTS[1], 20)
    assert sum(event["num_output_tokens"] for event in events) <= 20
    assert all(event["num_output_tokens"] for event in events)
    assert {event["num_input_tokens"] for event in events} == {len(PROMPTS[1])}
    assert [event["finish_reason"] for event in events[:-1]] == ["None"] * (len(events) - 1)
    assert events[-1]["finish_reason"] in ("stop", "length")


def test_parameters_may_come_one_by_one(server: Server, greedy: Callable[[str, int], str]) -> None:
    body = {"text_input": PROMPTS[2], "parameters": {"max_new_tokens": 7, "temperature": 0}}
    status, answer = generate(server, "tiny", body | {"exclude_input_in_output": True})
    assert status == 200
    assert answer["text_output"] == greedy(PROMPTS[2], 7)


def test_ids_are_a_prompt_too(server: Server, folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    given = {"sampling_parameters": '{"max_new_tokens": 9}'}
    ids = tokenizer.encode(PROMPTS[3]).ids
    of_ids = generate(server, "tiny", {"input_ids": ids, **given})
    whole = {"text_input": PROMPTS[3], "exclude_input_in_output": True, **given}
    assert of_ids == generate(server, "tiny", whole)


def test_prompt_tokens_found_in_the_prefix_cache_are_counted(server: Server) -> None:
    prompt = "A prompt that nobody else sends, of more than one page of the cache. "
    body = asked(prompt, max_new_tokens=2) | {"return_num_cached_tokens": True}
    counts = [generate(server, "tiny", body)[1]["num_cached_tokens"] for _ in range(2)]
    assert counts == [0, (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE]


def test_several_texts_are_in_one_answer(server: Server) -> None:
    given: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.0, "seed": 5, "logprobs": 2}
    body = asked("So", n=3, **given) | {"exclude_input_in_output": True, "return_logprobs": True}
    status, answer = generate(server, "tiny", body)
    assert status == 200
    assert len(set(answer["text_output"])) == len(answer["text_output"]) == 3
    for text in answer["logprobs"]:
        for place in json.loads(text):
            assert sorted(one["rank"] for one in place.values())[:2] == [1, 2]
    streamed = [[], [], []]  # type: ignore[var-annotated]
    for event in generate_stream(server, "tiny", asked("So", n=3, **given)):
        for text, piece in zip(streamed, event["text_output"], strict=True):
            text.append(piece)
    assert ["".join(text) for text in streamed] == answer["text_output"]


def test_a_prompts_log_probabilities_are_an_output(server: Server, folder: Path) -> None:
    body = asked(PROMPTS[1], max_tokens=0, prompt_logprobs=2) | {"return_prompt_logprobs": True}
    status, answer = generate(server, "tiny", body)
    assert (status, answer["text_output"]) == (200, PROMPTS[1])
    first, *others = json.loads(answer["prompt_logprobs"])
    assert first is None
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode(PROMPTS[1]).ids])
        rows = tiny_gpt2()(ids).logits[0, :-1].log_softmax(-1)
    for row, entry in zip(rows, others, strict=True):
        for token, one in entry.items():
            assert one["logprob"] == pytest.approx(row[int(token)].item(), abs=1e-4)
            assert one["rank"] == (row > row[int(token)]).sum() + 1
    body |= asked(PROMPTS[1], max_tokens=4, prompt_logprobs=2)
    streamed = list(generate_stream(server, "tiny", body))
    assert json.loads(streamed[0]["prompt_logprobs"]) == [first, *others]
    assert {event["prompt_logprobs"] for event in streamed[1:]} <= {"null"}


def test_32_streams_at_once_are_each_as_if_alone(
    server: Server, asker: Asker, greedily: Callable[[list[str], int], list[str]]
) -> None:
    streams = [Stream(server, "tiny", prompt, max_new_tokens=60) for prompt in PROMPTS]
    for stream, text in zip(streams, greedily(PROMPTS, 60), strict=True):
        with stream:
            assert stream.text() == text
    until(lambda: nothing_runs(asker, "tiny"))


def cancelled(asker: Asker, model: str = "slow") -> float:
    return asker.metric("fusewire_requests_total", model=model, outcome="cancelled")


def counted(server: Server) -> int:
    """Cancelled requests, as the server shows them to its models."""
    file = SHARED_MEMORY / f"{server.process._region_prefix}cancellations"
    return int.from_bytes(file.read_bytes(), sys.byteorder)


def tokens(asker: Asker) -> float:
    return asker.metric("fusewire_tokens_total", model="slow")


def test_a_cancelled_stream_gives_its_pages_back(server: Server, asker: Asker) -> None:
    before, computed, known = cancelled(asker), tokens(asker), counted(server)
    with Stream(server, "slow", "On and on", max_new_tokens=LONG, ignore_eos=True) as stream:
        responses = iter(stream)
        next(responses)
        until(lambda: asker.metric("fusewire_kv_pages_used_ratio", model="slow") > 0)
        until(lambda: asker.metric("fusewire_kv_bytes_per_live_token", model="slow") > 0)
        stream.cancel()
        until(lambda: cancelled(asker) == before + 1)
    assert counted(server) > known
    until(lambda: nothing_runs(asker, "slow"))
    assert 0 < tokens(asker) - computed < LONG / 2


def test_a_closed_connection_cancels_its_stream(server: Server, asker: Asker) -> None:
    before, computed, known = cancelled(asker), tokens(asker), counted(server)
    body = asked("Away", max_new_tokens=LONG, ignore_eos=True) | {"return_num_output_tokens": True}
    events = generate_stream(server, "slow", body)
    assert next(events)["num_output_tokens"] < LONG / 2  # pieces come while the text is made
    until(lambda: asker.metric("fusewire_running", model="slow") == 1)
    events.close()  # type: ignore[attr-defined]
    until(lambda: cancelled(asker) == before + 1)
    assert counted(server) > known
    until(lambda: nothing_runs(asker, "slow"))
    assert 0 < tokens(asker) - computed < LONG / 2


BAD: list[tuple[dict[str, Any], str]] = [
    ({"text_input": "x", "sampling_parameters": "{"}, "sampling_parameters: got ill-formed JSON"),
    ({"text_input": "x", "sampling_parameters": "[]"}, "sampling_parameters: got a JSON list"),
    (asked("x", temperature=-1), "temperature: got -1"),
    ({"text_input": "x", "sampling_parameters": '{"top_p": NaN}'}, "got NaN"),
    (asked("x", top_p=0), "top_p: got 0"),
    (asked("x", top_p=1.5), "top_p: got 1.5"),
    (asked("x", temprature=1), "temprature: got 1"),
    (asked("x" * 128, max_new_tokens=1), "text_input: got 128 tokens"),
    (asked("x", max_tokens=4000), "max_tokens: got 4000, wanted at most 127, the context length"),
    (asked("x", n=60, temperature=1.0, max_new_tokens=100), "n: got 6000 tokens"),
    (asked("x", stop=["a"] * 17), "stop: got 17 entries"),
    (asked(""), "text_input: got no tokens"),
    ({"sampling_parameters": "{}"}, "text_input: got no prompt"),
    ({"text_input": "x", "input_ids": [1]}, "text_input: got text_input and input_ids"),
    ({"messages": '[{"role": "user", "content": "x"}]'}, "no chat template"),
    ({"input_ids": [1, 257]}, "input_ids: got id 257"),
    (asked("x") | {"stream": True, "exclude_input_in_output": False}, "exclude_input_in_output"),
    (asked("x", length_penalty=99), "length_penalty: got 99"),
    (asked("x", num_beams=0), "num_beams: got 0"),
]


def test_bad_input_gets_its_own_error_and_disturbs_no_stream(server: Server) -> None:
    with Stream(server, "slow", "Steady", max_new_tokens=300, ignore_eos=True) as alone:
        wanted = alone.text()
    with Stream(server, "slow", "Steady", max_new_tokens=300, ignore_eos=True) as stream:
        responses = iter(stream)
        first = next(responses)["text_output"][0].decode()
        for body, words in BAD:
            status, answer = generate(server, "tiny", body)
            assert (status, words in answer["error"]) == (ANY_ERROR, True), (body, answer)
        assert first + "".join(r["text_output"][0].decode() for r in responses) == wanted


def test_a_text_that_has_its_special_tokens_is_given_none(server: Server) -> None:
    for text, given, tokens in (
        ("Hi", {}, 3),
        ("<|endoftext|>Hi", {}, 4),
        ("<|endoftext|>Hi", {"add_special_tokens": False}, 3),
    ):
        body = asked(text, max_new_tokens=1, **given) | {"return_num_input_tokens": True}
        status, answer = generate(server, "slow", body)
        assert (status, answer.get("num_input_tokens")) == (200, tokens), answer


def test_an_error_on_a_grpc_stream_is_the_requests_own(server: Server) -> None:
    with (
        Stream(server, "tiny", "x", top_p=7) as stream,
        pytest.raises(InferenceServerException, match=r"top_p: got 7, wanted"),
    ):
        stream.text()


def test_a_full_queue_is_said_at_once(server: Server, asker: Asker) -> None:
    given: dict[str, Any] = {"max_new_tokens": LONG, "ignore_eos": True}
    before = cancelled(asker, "narrow")
    with Stream(server, "narrow", "Runs", **given) as running:
        next(iter(running))
        with Stream(server, "narrow", "Waits", **given):
            until(lambda: asker.metric("fusewire_waiting", model="narrow") == 1)
            status, answer = generate(server, "narrow", asked("Too much"))
            assert status == ANY_ERROR
            assert answer["error"].startswith("queue: got 1 sequence waiting")
    # The watchdog's test inference may have been the one that waited.
    until(lambda: cancelled(asker, "narrow") > before)
    until(lambda: nothing_runs(asker, "narrow"))
    assert asker.metric("fusewire_rejected_total", model="narrow", reason="queue") >= 1


def test_a_request_out_of_time_fails(server: Server) -> None:
    given = {"max_new_tokens": LONG, "ignore_eos": True, "timeout_seconds": 0.2}

    def is_late() -> bool:
        status, answer = generate(server, "slow", asked("Late", **given))
        assert status == ANY_ERROR
        return str(answer["error"]).startswith("timeout: ")

    until(is_late)  # not refused at once, as where the watchdog's test inference runs


def test_an_unloaded_model_finishes_what_it_began(server: Server) -> None:
    given: dict[str, Any] = {"max_new_tokens": 1000, "ignore_eos": True}
    with Stream(server, "slow", "Last", ("num_output_tokens",), **given) as stream:
        responses = iter(stream)
        count = next(responses)["num_output_tokens"]
        unloading = threading.Thread(target=server.unload, args=("slow",))
        unloading.start()
        assert count + sum(each["num_output_tokens"] for each in responses) == 1000
        unloading.join()
    server.load("slow")
    assert generate(server, "slow", asked("Back", max_new_tokens=2))[0] == 200


def serving(server: Server, model: str) -> int:
    """The newest process: of a machine that is overloaded, tritonserver may keep an older one."""
    return max(stub.pid for stub in server.process.stubs() if stub.model == model)


def test_an_http_stream_lacks_nothing_and_keeps_no_process_though_a_model_is_loaded(
    server: Server,
) -> None:
    given = {"max_new_tokens": 2000, "ignore_eos": True}
    body = asked("On", **given) | {"return_num_output_tokens": True}
    events = generate_stream(server, "slow", body)
    count = next(events)["num_output_tokens"]
    server.unload("narrow")
    server.load("narrow")
    assert count + sum(event["num_output_tokens"] for event in events) == 2000
    old = serving(server, "slow")
    server.unload("slow")
    server.load("slow")
    until(lambda: processes.stub(old) is None)


def test_a_process_that_is_kept_for_a_stream_that_was_lost_is_ended(server: Server) -> None:
    """Loading over HTTP, as nobody should, makes tritonserver lose the ends of streams at times."""
    streams = [
        generate_stream(server, "slow", asked("Away", max_new_tokens=tokens, ignore_eos=True))
        for tokens in range(500, 1300, 100)
    ]
    for events in streams:
        next(events)
    server.unload("narrow")
    path = "repository/models/narrow/load"
    server.endpoint.call(path, {}, timeout_s=60, control_key=CONTROL_KEY)
    for events in streams:
        events.close()  # type: ignore[attr-defined]
    old = serving(server, "slow")
    reloads = server.watchdog.reloads
    server.unload("slow")
    server.load("slow")
    until(lambda: processes.stub(old) is None)
    assert generate(server, "slow", asked("Back", max_new_tokens=2))[0] == 200
    assert server.watchdog.reloads == reloads


def test_a_killed_model_is_loaded_again(server: Server, asker: Asker) -> None:
    recovery = Recovery(server)
    with Stream(server, "slow", "Doomed", max_new_tokens=LONG, ignore_eos=True) as stream:
        next(iter(stream))
        os.kill(serving(server, "slow"), signal.SIGKILL)
        until(lambda: recovery)
    assert generate(server, "slow", asked("Alive", max_new_tokens=2))[0] == 200
    until(lambda: nothing_runs(asker, "slow"))


def test_the_command_line_shows_the_text_as_it_comes(
    server: Server, greedy: Callable[[str, int], str]
) -> None:
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    prompt = PROMPTS[5]
    parts = pieces("generate", [prompt], address, "grpc", "tiny", {"max_new_tokens": 40})
    assert "".join(parts) == greedy(prompt, 40) + "\n"
    long = pieces(
        "generate", [prompt], address, "grpc", "slow", {"max_new_tokens": LONG, "ignore_eos": True}
    )
    assert 0 < len(next(long)) < LONG / 2  # a token is a byte at most
    long.close()  # type: ignore[attr-defined]
    with pytest.raises(AskFailed, match="top_p: got 7"):
        list(pieces("generate", [prompt], address, "grpc", "tiny", {"top_p": 7}))


def test_the_command_line_shows_in_json_what_came_with_a_text(
    server: Server, greedy: Callable[[str, int], str]
) -> None:
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    prompt = PROMPTS[5]
    few = {"max_new_tokens": 2, "logprobs": 1, "prompt_logprobs": 0}
    lines, (record,) = ask("generate", [prompt], [], address, "grpc", "tiny", few)
    assert lines == [greedy(prompt, 2)]
    assert (record["text"], record["output"]) == (prompt, lines[0])
    assert record["finish_reason"] == "length"
    assert record["usage"]["completion_tokens"] == len(record["logprobs"]) == 2
    first, *others = record["prompt_logprobs"]
    assert first is None
    assert len(others) == record["usage"]["prompt_tokens"] - 1
    assert next(iter(record["logprobs"][0].values()))["rank"] == 1
    assert json.dumps(record)
    drawn = few | {"n": 2, "temperature": 1.0, "seed": 1}
    lines, (record,) = ask("generate", [prompt], [], address, "grpc", "tiny", drawn)
    assert lines == record["output"]
    assert [len(each) for each in record["logprobs"]] == [2, 2]
