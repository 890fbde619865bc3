"""Each method, on gRPC and HTTP, blocking and asyncio, against a server that reads the wire."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from fusewire_client import (
    Answer,
    Candidate,
    Entity,
    InvalidArgument,
    NotFound,
    Ranked,
    ServerError,
)

from tests.client.fake_triton import FakeTriton
from tests.client.four_clients import Call

TEXTS = ["a", "zwei", "three of them", "日本語"]
ROWS = [[len(text), sum(text.encode())] for text in TEXTS]


def test_texts_travel_in_one_request(call: Call, server: FakeTriton) -> None:
    vectors = call("embed", TEXTS, model="mini", truncate=True)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, ROWS)
    ((model, inputs, parameters, wanted),) = server.seen
    assert (model, wanted, parameters) == ("mini", ["embedding"], {"truncate": True})
    assert inputs["text_input"].shape == (4, 1)


def test_many_texts_are_split_and_come_back_in_order(call: Call, server: FakeTriton) -> None:
    texts = ["x" * n for n in range(1, 11)]
    vectors = call("embed", texts, model="mini", options={"max_batch": 3})
    assert vectors[:, 0].tolist() == list(range(1, 11))
    assert sorted(len(s[1]["text_input"]) for s in server.seen) == [1, 3, 3, 3]


def test_ragged_ids_travel_one_by_one_at_once_and_in_order(call: Call, server: FakeTriton) -> None:
    server.together = threading.Barrier(4)
    ids = [[7], [1, 2, 3], [4, 5], [1] * 50]
    vectors = call("embed", ids=ids, model="mini")
    assert vectors.tolist() == [[1, 7], [3, 6], [2, 9], [50, 50]]
    assert sorted(s[1]["input_ids"].shape for s in server.seen) == [(1, 1), (1, 2), (1, 3), (1, 50)]
    assert all(list(s[1]) == ["input_ids"] for s in server.seen)
    assert server.most_under_way == 4


def test_concurrency_is_bounded(call: Call, server: FakeTriton) -> None:
    server.delay_s = 0.02
    call("embed", ids=[[1]] * 9, model="mini", options={"concurrency": 2})
    assert len(server.seen) == 9
    assert server.most_under_way <= 2


def test_an_id_matrix_with_a_mask_is_one_request(call: Call, server: FakeTriton) -> None:
    ids = np.array([[1, 2, 0], [3, 4, 5]])
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    vectors = call("embed", ids=ids, attention_mask=mask, token_type_ids=mask, model="mini")
    assert vectors.tolist() == [[2, 3], [3, 12]]
    ((_, inputs, _, _),) = server.seen
    np.testing.assert_array_equal(inputs["input_ids"], ids)
    np.testing.assert_array_equal(inputs["token_type_ids"], mask)


def test_hidden_states_have_their_own_lengths(call: Call) -> None:
    states = call("hidden", TEXTS, model="states")
    assert [s.shape for s in states] == [(len(text), 2) for text in TEXTS]
    assert [s[0].tolist() for s in states] == ROWS
    states[0][0] = 0  # the caller's own memory


def test_classify_takes_pairs(call: Call) -> None:
    one, two = call("classify", ["q", "w"], ["first", "second"], model="mood")
    assert (one.label, two.label) == ("q|first", "w|second")
    assert one.scores.tolist() == [0.5, ord("q") / 2]


def test_documents_are_ranked(call: Call, server: FakeTriton) -> None:
    server.labels = 1
    documents = ["first", "second", "third"]
    queries = call("rerank", "query", documents, model="mood", options={"max_batch": 2})
    assert [each.corpus_id for each in queries] == [0, 1, 2]
    assert [each.text for each in queries] == documents
    assert {tuple(sorted(parameters.items())) for _, _, parameters, _ in server.seen} == {
        (("truncate", True),)
    }
    by_length = call("rerank", "x", ["a", "b"], 1, model="mood", truncate=False)
    assert by_length == [Ranked(0, 0.5, "a")]
    server.labels = 2
    with pytest.raises(InvalidArgument, match="model: got one with 2 labels, wanted 1"):
        call("rerank", "query", documents, model="mood")
    with pytest.raises(InvalidArgument, match="top_k: got 0"):
        call("rerank", "query", documents, 0, model="mood")


@pytest.mark.parametrize("parameters", [{}, {"aggregation_strategy": "simple"}])
def test_tag(call: Call, parameters: dict[str, Any]) -> None:
    found = call("tag", ["Ada here", "nobody"], model="names", **parameters)
    assert found == [[Entity("PER", "Ada", 0, 3, 0.5)], []]


def test_answer_and_answers(call: Call) -> None:
    assert call("answer", "who?", "Ada", model="squad") == Answer("A", 0, 1, 1.0)
    with pytest.raises(InvalidArgument, match="top_k: got it for the best answer alone"):
        call("answer", "who?", "Ada", model="squad", top_k=2)
    several = call("answers", "who?", "Ada", 2, model="squad")
    assert several == [Answer("A", 0, 1, 1.0), Answer("Ad", 0, 2, 0.5)]


def test_fill_and_fill_masks(call: Call) -> None:
    candidates = call("fill", "a [MASK]", 2, model="masked")
    assert candidates == [Candidate("t0", 0, 0.1, "a t0"), Candidate("t1", 1, 0.1, "a t1")]
    masks = call("fill_masks", "[MASK] [MASK]", 1, model="masked")
    assert [len(mask) for mask in masks] == [1, 1]
    with pytest.raises(InvalidArgument, match=r"2 masks.*fill_masks"):
        call("fill", "[MASK] [MASK]", model="masked")


def test_infer_passes_tensors_and_every_type_of_parameter(call: Call, server: FakeTriton) -> None:
    parameters = {"s": "é", "i": 7, "b": False, "f": 0.25}
    inputs = {"text_input": np.array([["ab"]], dtype=np.object_)}
    outputs = call("infer", "mini", inputs, parameters=parameters)
    assert outputs["embedding"].tolist() == [[2, 195]]
    assert server.seen[0][2] == parameters
    assert {k: type(v) for k, v in server.seen[0][2].items()} == {
        "s": str, "i": int, "b": bool, "f": float,
    }  # fmt: skip


def test_the_only_model_of_a_task_is_found(call: Call, server: FakeTriton) -> None:
    assert call("embed", ["a"]).shape == (1, 2)
    assert server.seen[0][0] == "mini"


def test_two_models_of_a_task_must_be_named(call: Call, server: FakeTriton) -> None:
    server.outputs["other"] = ["embedding"]
    with pytest.raises(InvalidArgument, match="mini, other"):
        call("embed", ["a"])
    assert call("embed", ["a"], options={"model": "mini"}).shape == (1, 2)


@pytest.mark.parametrize("method", ["translate", "summarise"])
def test_models_without_an_encoder_do_not_write_after_a_source(
    call: Call, server: FakeTriton, method: str
) -> None:
    server.outputs["gpt2"] = ["text_output"]
    with pytest.raises(NotFound, match=rf"gpt2 \(generate\).* wanted one that does '{method}'"):
        call(method, "a")
    server.outputs |= {name: ["text_output", "alignment"] for name in ("bart", "opus")}
    with pytest.raises(InvalidArgument, match=rf"got 2 that do '{method}' \(bart, opus\)"):
        call(method, "a")


def test_encoder_decoder_models_chat_where_no_other_does(call: Call, server: FakeTriton) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    server.outputs |= {name: ["text_output", "alignment"] for name in ("bart", "opus")}
    with pytest.raises(InvalidArgument, match=r"got 2 that do 'chat' \(bart, opus\), wanted one"):
        call("chat", messages)
    server.outputs |= {name: ["text_output"] for name in ("gpt2", "qwen3")}
    with pytest.raises(InvalidArgument, match=r"got 2 that do 'chat' \(gpt2, qwen3\), wanted one"):
        call("chat", messages)


def test_no_model_of_a_task_lists_what_there_is(call: Call, server: FakeTriton) -> None:
    del server.outputs["squad"]
    with pytest.raises(NotFound, match="mini \\(embed\\)"):
        call("answer", "q", "c")


def test_models_and_statistics(call: Call) -> None:
    models = {model.name: model for model in call("models")}
    assert models["mood"].task == "classify"
    assert models["mini"].outputs == ("embedding",)
    (one,) = call("statistics", "mini")
    assert (one.requests, one.failures, one.inferences, one.executions) == (6, 1, 12, 4)
    assert (one.mean_batch, one.queue_seconds, one.compute_seconds) == (3.0, 2.0, 0.5)
    assert one.batches == {3: 4}


def test_readiness(call: Call) -> None:
    assert call("ready") is True
    assert call("ready", "mini") is True
    assert call("ready", "absent") is False


def test_headers_are_sent(call: Call, server: FakeTriton) -> None:
    call("embed", ["a"], model="mini", options={"headers": {"Authorization": "Bearer x"}})
    assert server.headers[0]["authorization"] == "Bearer x"


def test_an_answer_that_is_not_ours_is_a_server_error(
    call: Call, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = {"entities": np.array([[b'[{"label": 3}]']], np.object_)}
    monkeypatch.setattr(server, "infer", lambda *_: strange)
    with pytest.raises(ServerError, match="entities: got"):
        call("tag", ["x"], model="names")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "one"}, "texts: got one string"),
        ({"texts": 3}, "texts: got int, wanted a list of texts"),
        ({"texts": {"a": 1}}, "texts: got dict, wanted a list of texts"),
        ({"texts": []}, "texts: got an empty list"),
        ({"texts": ["a", b"b"]}, r"texts\[1\]: got bytes"),
        ({}, "texts, ids: got neither"),
        ({"texts": ["a"], "ids": [[1]]}, "texts, ids: got both"),
        ({"ids": []}, "ids: got an empty list"),
        ({"ids": [1, 2]}, r"ids\[0\]: got .* one list of ids for each"),
        ({"ids": [[1.5]]}, r"ids\[0\]: got float64"),
        ({"ids": np.zeros((2, 2, 2), np.int64)}, "ids: got int64 of shape"),
        ({"ids": [[1, 2]], "attention_mask": [[1]]}, "attention_mask: got shapes"),
        ({"texts": ["a"], "attention_mask": [[1]]}, "attention_mask, token_type_ids"),
        ({"texts": ["a"], "priority": 3}, "priority: got a reserved"),
        ({"texts": ["a"], "top_k": None}, "top_k: got None, wanted"),
        ({"texts": ["a"], "top_k": 2**63}, "top_k: got 9223372036854775808"),
        ({"texts": ["a"], "pooling": "\ud800"}, "pooling: got a lone surrogate"),
        ({"texts": ["a"], "timeout_s": 0}, "timeout_s: got 0"),
        ({"texts": ["a"], "timeout_s": "3"}, "timeout_s: got '3', wanted a number"),
        ({"texts": ["a"], "version": 1}, "version: got int, wanted str"),
    ],
)
def test_what_cannot_be_right_is_refused_here(
    call: Call, server: FakeTriton, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call("embed", model="mini", **arguments)
    assert not server.seen


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (5, "audio: got int, wanted an audio file"),
        (None, "audio: got None, wanted an audio file"),
        ({"file": "a.wav"}, "audio: got dict, wanted an audio file"),
        ([b"RIFF", 5], r"audio\[1\]: got int, wanted an audio file"),
        ("a\0b", "audio: got 'embedded null byte' for a\0b, wanted a file"),
    ],
)
def test_what_is_no_audio_is_refused_here(
    call: Call, server: FakeTriton, audio: object, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call("transcribe", audio, model="whisper")
    assert not server.seen


def test_a_model_is_named_by_a_text(call: Call) -> None:
    with pytest.raises(InvalidArgument, match="model: got int, wanted str"):
        call("embed", ["a"], model=5)
