"""Every task over the wire as transformers answers it, bad input beside good, request parameters,
cancelling, metrics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from fusewire.serving.endpoint import EndpointError
from tritonclient.utils import InferenceServerException

from tests.reference import SENTENCES
from tests.server.asking import Asker, _inputs, ids, texts, until
from tests.server.theirs import Theirs
from tests.tasks.deployed import plain, same_json
from tests.tasks.test_answer import expected
from tests.tolerance import MODEL_FP32, PIPELINE_SCORE

LONG = "long " * 1000


@pytest.fixture(scope="module")
def theirs(tiny: Callable[..., Path]) -> Callable[..., Theirs]:
    return lambda *checkpoint: Theirs(tiny(*checkpoint), checkpoint[1])


@pytest.fixture(scope="module")
def their_minilm(minilm: Path) -> Theirs:
    return Theirs(minilm, "embed")


def scores_and_labels(theirs: Theirs, question: dict[str, str]) -> tuple[list[float], str]:
    """One text, or a pair."""
    labels = theirs.pipeline("text-classification", top_k=None)(question)
    scores = {label["label"]: label["score"] for label in labels}
    names = theirs.reference.config.id2label
    return [scores[names[i]] for i in range(len(names))], labels[0]["label"]


def test_classify(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    bert = theirs("bert", "classify")
    answer = asker.ask("classify", texts(*SENTENCES[:3]))
    pair = texts(SENTENCES[0]) | {"text_pair": np.array([[SENTENCES[1].encode()]], object)}
    of_pair = asker.ask("classify", pair)
    questions = [{"text": sentence} for sentence in SENTENCES[:3]]
    questions.append({"text": SENTENCES[0], "text_pair": SENTENCES[1]})
    scores, labels = zip(*(scores_and_labels(bert, each) for each in questions), strict=True)
    got = np.concatenate([answer["scores"], of_pair["scores"]])
    np.testing.assert_allclose(got, scores, rtol=0, atol=PIPELINE_SCORE)
    given = np.concatenate([answer["label"], of_pair["label"]])
    assert [label.decode() for label in given[:, 0]] == list(labels)


@pytest.mark.parametrize("strategy", ["none", "simple"])
def test_tag(asker: Asker, theirs: Callable[..., Theirs], strategy: str) -> None:
    tag = theirs("roberta", "tag").pipeline("token-classification", aggregation_strategy=strategy)
    asked = {"aggregation_strategy": strategy}
    rows = asker.ask("tag", texts(*SENTENCES[:3]), parameters=asked)["entities"]
    for row, sentence in zip(rows[:, 0], SENTENCES, strict=False):
        wanted = plain(tag(sentence))
        assert wanted
        same_json(json.loads(row), wanted, PIPELINE_SCORE)


def test_answer(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    context, question = "It was signed in Utrecht in 1713.", "Where was it signed?"
    pair = texts(question) | {"text_pair": np.array([[context.encode()]], object)}
    answers = json.loads(asker.ask("answer", pair, parameters={"top_k": 2})["answer"][0, 0])
    bert = theirs("distilbert", "answer")
    wanted = expected(bert, question, context, 64, 16, 15, 2, False)
    same_json(answers, wanted, PIPELINE_SCORE)


def test_fill(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    sentence = "Paris is the [MASK] of France."
    reply = asker.ask("fill", texts(sentence), parameters={"top_k": 3})
    wanted = theirs("albert", "fill").pipeline("fill-mask")(sentence, top_k=3)
    same_json(json.loads(reply["candidates"][0, 0]), plain(wanted), PIPELINE_SCORE)


def test_hidden(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    bert = theirs("bert", "embed")
    states = asker.ask("hidden", texts(*SENTENCES[:2]))["last_hidden_state"]
    for row, sentence in zip(states, SENTENCES, strict=False):
        wanted = bert.states(**bert.tokenizer(sentence))
        np.testing.assert_allclose(row[: len(wanted)], wanted, rtol=0, atol=MODEL_FP32)
        assert not row[len(wanted) :].any()


def test_http_generate_takes_one_flat_text(asker: Asker, their_minilm: Theirs) -> None:
    answer = asker.server.endpoint.call("models/minilm/generate", {"text_input": "hello"})
    wanted = their_minilm.mean(**their_minilm.tokenizer("hello"), normalize=True)
    np.testing.assert_allclose(answer["embedding"], wanted, rtol=0, atol=MODEL_FP32)


def test_only_requested_outputs_come_back(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    answer = asker.ask("classify", texts(SENTENCES[0]), outputs=["label"])
    assert answer.keys() == {"label"}
    _, label = scores_and_labels(theirs("bert", "classify"), {"text": SENTENCES[0]})
    assert answer["label"][0, 0].decode() == label


def test_versions_are_served_side_by_side(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    question = ids([5, 6, 7])
    first = asker.ask("versions", question, version="1")["embedding"]
    second = asker.ask("versions", question, version="2")["embedding"]
    for seed, got in ((1, first), (2, second)):
        wanted = theirs("bert", "embed", seed).mean([5, 6, 7])
        np.testing.assert_allclose(got[0], wanted, rtol=0, atol=MODEL_FP32)
    asker.same(asker.ask("versions", question)["embedding"], second)
    with pytest.raises(InferenceServerException, match="version"):
        asker.ask("versions", question, version="3")


def test_several_instances_answer_alike(asker: Asker, theirs: Callable[..., Theirs]) -> None:
    stubs = [stub for stub in asker.server.process.stubs() if stub.model == "pair"]
    assert len(stubs) == 2
    if asker.device == "cpu":
        assert sorted(stub.instance for stub in stubs) == ["pair_0_0", "pair_0_1"]
    wanted, _ = scores_and_labels(theirs("electra", "classify"), {"text": SENTENCES[0]})
    answers = asker.together("pair", [texts(SENTENCES[0])] * 16)
    for answer in answers:
        assert isinstance(answer, dict), answer
        np.testing.assert_allclose(answer["scores"][0], wanted, rtol=0, atol=PIPELINE_SCORE)
        asker.same(answer["scores"], answers[0]["scores"])  # type: ignore[index]


@pytest.mark.parametrize("truncate", [True, "true"])
def test_a_text_is_truncated_on_request(
    asker: Asker, their_minilm: Theirs, truncate: bool | str
) -> None:
    got = asker.ask("minilm", texts(LONG), parameters={"truncate": truncate})["embedding"]
    cut = their_minilm.tokenizer(LONG, truncation=True, max_length=256)
    wanted = their_minilm.mean(**cut, normalize=True)
    np.testing.assert_allclose(got[0], wanted, rtol=0, atol=MODEL_FP32)


def test_a_request_chooses_its_pooling(asker: Asker, their_minilm: Theirs) -> None:
    chosen = {"pooling": "cls", "normalize": False}
    got = asker.ask("minilm", texts("hello"), parameters=chosen)["embedding"]
    wanted = their_minilm.states(**their_minilm.tokenizer("hello"))[0]
    np.testing.assert_allclose(got[0], wanted, rtol=0, atol=MODEL_FP32)


BAD = {
    "negative id": (ids([101, -1, 102]), {}, ["input_ids", "-1"]),
    "id beyond the vocabulary": (ids([101, 30522, 102]), {}, ["input_ids", "30522", "30521"]),
    "mask of other values": (ids([101, 102], attention_mask=[[1, 7]]), {}, ["attention_mask", "7"]),
    "mask of zeros": (ids([101, 102], attention_mask=[[0, 0]]), {}, ["attention_mask"]),
    "mask of another shape": (ids([101, 102], attention_mask=[[1]]), {}, ["attention_mask"]),
    "too long": (texts(LONG), {}, ["text_input", "256", "truncate"]),
    "bad UTF-8": (texts(b"\xff\xfe"), {}, ["text_input", "UTF-8"]),
    "pair for one text": (
        texts("a") | {"text_pair": np.array([[b"b"]], object)},
        {},
        ["text_pair"],
    ),
    "unknown parameter": (texts("a"), {"bogus": 3}, ["bogus", "3", "truncate"]),
    "ill-typed parameter": (texts("a"), {"truncate": 3}, ["truncate", "3", "true or false"]),
    "parameter out of range": (texts("a"), {"max_length": 100000}, ["max_length", "100000", "256"]),
    "texts and ids": (texts("a") | ids([101, 102]), {}, ["text_input", "input_ids"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_an_invalid_argument_that_says_what_and_how(asker: Asker, case: str) -> None:
    inputs, parameters, words = BAD[case]
    with pytest.raises(InferenceServerException) as caught:
        asker.ask("minilm", inputs, parameters=parameters)
    error = caught.value
    assert error.status() == "StatusCode.INVALID_ARGUMENT"
    for word in words:
        assert word in error.message()
    assert "; " in error.message()  # the remedy
    for leak in ("Traceback", "/", ".py", "Error"):
        assert leak not in error.message(), error.message()


def test_a_wrong_dtype_is_refused(asker: Asker) -> None:
    with pytest.raises(InferenceServerException, match=r"input_ids.*INT64") as caught:
        asker.ask("minilm", {"input_ids": np.array([[101, 102]], np.int32)})
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_bad_input_over_http_is_400(asker: Asker) -> None:
    tensor = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [101, -5]}
    with pytest.raises(EndpointError, match="-5") as caught:
        asker.server.endpoint.call("models/minilm/infer", {"inputs": [tensor]})
    assert caught.value.status == 400


def test_a_large_body_is_answered_and_the_server_lives(asker: Asker) -> None:
    count, pid = 3 << 20, asker.server.process.pid
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": [1, count], "data": [1] * count}
    with pytest.raises(EndpointError, match=f"got {count} tokens, wanted at most") as caught:
        # As curl -d does, this sends what it names application/x-www-form-urlencoded.
        asker.server.endpoint.call("models/minilm/infer", {"inputs": [tensor]}, timeout_s=60)
    assert caught.value.status == 400
    assert asker.server.process.pid == pid
    assert asker.server.process.running()


def test_bad_requests_do_not_harm_others_of_their_execution(asker: Asker) -> None:
    good, bad = ids([101, 7592, 102]), ids([101, 99999, 102, 102])
    failed_before = asker.metric("fusewire_rejected_total", model="gather", reason="input_ids")
    answers, times = asker.sharing("gather", [good, bad] * 8, 2)
    alone = asker.ask("minilm", good)["embedding"]
    for index, answer in enumerate(answers):
        if index % 2:
            assert isinstance(answer, InferenceServerException)
            assert "99999" in answer.message()
        else:
            assert isinstance(answer, dict), answer
            asker.same(answer["embedding"], alone)
    until(
        lambda: (
            asker.metric("fusewire_rejected_total", model="gather", reason="input_ids")
            == failed_before + 8 * times
        )
    )


def test_cancelled_requests_are_skipped(asker: Asker) -> None:
    """What is cancelled while it waits for company is never computed."""
    before = asker.metric("fusewire_tokens_total", model="cancel")
    done = [threading.Event() for _ in range(5)]
    errors: dict[int, Any] = {}

    def arrived(result: Any, error: Any, index: int) -> None:
        errors[index] = error
        done[index].set()

    calls = [
        asker.client.async_infer(
            "cancel",
            _inputs(ids([101, *[7592] * 20, 102])),
            lambda result, error, index=index: arrived(result, error, index),
        )
        for index in range(5)
    ]
    until(lambda: asker.metric("nv_inference_pending_request_count", model="cancel") == 5)
    for call in calls[:4]:
        call.cancel()
    for event in done:
        assert event.wait(20)
    assert all("CANCELLED" in str(errors[index].status()) for index in range(4))
    assert errors[4] is None
    until(lambda: asker.metric("fusewire_tokens_total", model="cancel") >= before + 22)
    time.sleep(0.2)
    # The watchdog's probes count too, and are shorter.
    assert asker.metric("fusewire_tokens_total", model="cancel") < before + 2 * 22


def test_the_metrics_of_the_design_are_there(asker: Asker) -> None:
    asker.ask("minilm", texts("hello"))
    series = ("requests_total", "batch_tokens_count", "tokenize_seconds_sum", "compute_seconds_sum")
    until(lambda: asker.metric("fusewire_requests_total", model="minilm", outcome="ok") >= 1)
    for name in (*series, "allocator_reserved_bytes", "allocator_allocated_bytes"):
        assert asker.metric(f"fusewire_{name}", model="minilm") > 0, name
    with pytest.raises(InferenceServerException):
        asker.ask("minilm", texts("x"), parameters={"bogus": 1})
    until(lambda: asker.metric("fusewire_rejected_total", reason="parameter") >= 1)


def test_statistics_are_open_and_models_describe_themselves(asker: Asker) -> None:
    client: triton.InferenceServerClient = asker.client
    assert client.get_inference_statistics("minilm").model_stats
    names = [tensor.name for tensor in client.get_model_metadata("minilm").inputs]
    assert names == ["text_input", "text_pair", "input_ids", "attention_mask", "token_type_ids"]
