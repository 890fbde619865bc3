"""A real server with encoder-decoder models: whole answers and streams, by every task's name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fusewire_client
import numpy as np
import openai
import pytest
import tokenizers
import torch
from fusewire.errors import ConfigurationError
from fusewire.serving.asking import ask, pieces
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server

from tests.engine.generating import END, byte_tokenizer, tiny_folder
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.server.asking import PATIENCE_S
from tests.server.streaming import Stream, generate, generate_stream
from tests.tolerance import PIPELINE_SCORE

TEXTS = [f"Text {number} of those to translate" + "!" * number for number in range(16)]
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bart")
    model = tiny_seq2seq(folder, "bart", vocab_size=END + 1)
    model.generation_config.update(eos_token_id=END, forced_bos_token_id=72)
    model.generation_config.save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def translations(folder: Path) -> list[str]:
    """Of transformers."""
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            made = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=TOKENS)
        found.append(tokenizer.decode(made[0, 1:].tolist()))
    return found


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    for task in (None, "translate"):
        import_folder(
            folder,
            root,
            name=task or "bart",
            settings={"task": task, "dtype": "float32", "max_batch_tokens": 128},
            deployment=Deployment(device=device),
            link=True,
        )
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    settings = ServerSettings(watch_interval_s=1, exit_timeout_s=2, **ports)
    with Server([root], settings, report=print) as server:
        yield server


def test_texts_are_answered_together_as_alone(server: Server, translations: list[str]) -> None:
    def answer(text: str) -> str:
        body = {"text_input": text, "max_tokens": TOKENS, "return_num_input_tokens": True}
        status, found = generate(server, "bart", body)
        assert (status, found["num_input_tokens"]) == (200, len(text))
        return found["text_output"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, TEXTS)) == translations


def test_a_text_comes_in_pieces(server: Server, translations: list[str]) -> None:
    # So many that a server that is late with them does not have all in one piece.
    body = {"text_input": TEXTS[3], "max_tokens": 10 * TOKENS}
    status, whole = generate(server, "translate", body)
    assert status == 200
    events = list(generate_stream(server, "translate", body | {"stream": True}))
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    with Stream(server, "translate", TEXTS[4], max_tokens=TOKENS) as stream:
        assert stream.text() == translations[4]


def test_clients_and_the_command_line_translate(server: Server, translations: list[str]) -> None:
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    with fusewire_client.Client(address, model="translate") as client:
        assert client.translate(TEXTS, max_new_tokens=TOKENS) == translations
        assert client.summarise(TEXTS[0], max_new_tokens=TOKENS) == translations[0]
        with pytest.raises(fusewire_client.InvalidArgument, match="got 129 tokens, wanted at most"):
            client.translate("x" * 129)
    parameters = {"max_new_tokens": TOKENS}
    outputs, _ = ask("translate", TEXTS[:2], [], address, "grpc", "bart", parameters)
    assert outputs == translations[:2]
    streamed = pieces("translate", TEXTS[:1], address, "grpc", "bart", parameters)
    assert "".join(streamed) == translations[0] + "\n"


def test_the_openai_endpoint_completes(server: Server, translations: list[str]) -> None:
    assert server.openai is not None
    url = f"http://{server.openai.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        for model in ("bart", "translate"):
            found = client.completions.create(
                model=model, prompt=TEXTS[:2], max_tokens=TOKENS, temperature=0
            )
            assert [choice.text for choice in found.choices] == translations[:2]
            assert found.usage is not None
            assert found.usage.prompt_tokens == sum(map(len, TEXTS[:2]))
        with pytest.raises(openai.BadRequestError, match="echo: got true, wanted false for an enc"):
            client.completions.create(model="bart", prompt=TEXTS[0], echo=True)


def test_beams_are_those_of_transformers(server: Server, folder: Path) -> None:
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert server.openai is not None
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    url = f"http://{server.openai.address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        for text in TEXTS[:4]:
            ids = torch.tensor([tokenizer.encode(text).ids])
            with torch.no_grad():
                made = model.generate(
                    ids,
                    do_sample=False, num_beams=3, num_return_sequences=2, max_new_tokens=TOKENS,
                    return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
            wanted = [tokenizer.decode(row[1:].tolist()) for row in made.sequences]
            scores = pytest.approx(made.sequences_scores.tolist(), abs=PIPELINE_SCORE)
            beams = {"num_beams": 3, "n": 2, "max_tokens": TOKENS}
            body = {"text_input": text, "return_sequences_scores": True, **beams}
            body |= {"logprobs": 0, "return_logprobs": True}
            status, found = generate(server, "bart", body)
            assert (status, found["text_output"]) == (200, wanted)
            assert found["sequences_scores"] == scores
            of_tokens = model.compute_transition_scores(
                made.sequences, made.scores, made.beam_indices
            )
            for row, places in zip(
                of_tokens.tolist(), map(json.loads, found["logprobs"]), strict=True
            ):
                logprobs = [place.popitem()[1]["logprob"] for place in places]
                assert logprobs == pytest.approx(row[: len(logprobs)], abs=PIPELINE_SCORE)
                assert row[len(logprobs) :] == [0.0] * (len(row) - len(logprobs))
            _, (record,) = ask("translate", [text], [], address, "grpc", "bart", beams)
            assert (record["output"], record["sequences_scores"]) == (wanted, scores)
            searched = client.completions.create(
                model="bart", prompt=text, max_tokens=TOKENS, n=2,
                extra_body={"use_beam_search": True, "best_of": 3},
            )  # fmt: skip
            assert [choice.text for choice in searched.choices] == wanted


@pytest.mark.parametrize("n", [1, 2])
def test_beams_stream_what_they_answer_whole(server: Server, n: int) -> None:
    """Over every way in."""
    beams = {"num_beams": 3, "n": n}
    asked = {**beams, "max_tokens": 4 * TOKENS}
    returned = {"return_sequences_scores": True}
    assert server.openai is not None
    url = f"http://{server.openai.address}/v1"
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    for text in TEXTS[:4]:
        status, found = generate(server, "bart", {"text_input": text, **asked, **returned})
        assert status == 200
        wanted = [found["text_output"]] if n == 1 else found["text_output"]
        body = {"text_input": text, "stream": True, **asked, **returned}
        *before, last = events = list(generate_stream(server, "bart", body))
        assert joined(each["text_output"] for each in events) == wanted
        assert last["sequences_scores"] == found["sequences_scores"]
        assert not any("sequences_scores" in each for each in before)
        with Stream(server, "bart", text, **asked) as stream:
            responses = [each["text_output"] for each in stream]
        assert [b"".join(pieces).decode() for pieces in zip(*responses, strict=True)] == wanted
        with fusewire_client.Client(address, model="bart") as client:
            arguments = {"details": True, **asked}
            whole = client.translate(text, **arguments)
            streamed = list(client.translate(text, stream=True, **arguments))
        for index, one in enumerate(whole):
            mine = [piece for piece in streamed if piece.index == index]
            assert "".join(piece.text for piece in mine) == one.text == wanted[index]
            assert mine[-1].finish_reason == one.finish_reason
            scores = np.ravel(found["sequences_scores"])
            assert mine[-1].score == one.score == pytest.approx(scores[index])
        with openai.OpenAI(
            base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S
        ) as client:
            chunks = client.completions.create(
                model="bart", prompt=text, max_tokens=4 * TOKENS, n=n, stream=True,
                extra_body={"num_beams": 3},
            )  # fmt: skip
            choices = [choice for chunk in chunks for choice in chunk.choices]
        for index in range(n):
            assert "".join(c.text for c in choices if c.index == index) == wanted[index]


def joined(texts: Iterable[str | list[str]]) -> list[str]:
    """Of each of n texts its pieces together."""
    split = [[each] if isinstance(each, str) else each for each in texts]
    return ["".join(pieces) for pieces in zip(*split, strict=True)]


def test_what_a_model_cannot_do_is_refused(server: Server, tmp_path: Path) -> None:
    body = {"text_input": "text", "exclude_input_in_output": False}
    status, found = generate(server, "bart", body)
    assert status == 400
    assert "exclude_input_in_output: got false, wanted true for an encoder" in found["error"]
    gpt2 = tiny_folder(tmp_path)
    with pytest.raises(ConfigurationError, match="task: got translate for gpt2, wanted generate"):
        import_folder(gpt2, tmp_path / "root", name="gpt2", settings={"task": "translate"})
