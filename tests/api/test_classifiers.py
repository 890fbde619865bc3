"""`Reranker` and `Classifier` answer what CrossEncoder and transformers' pipeline answer."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import fusewire
import numpy as np
import pytest
import torch
import transformers
from fusewire.errors import CheckpointError, InvalidInput

from tests.reference import SENTENCES, tiny_checkpoint
from tests.tolerance import PIPELINE_SCORE

sentence_transformers = pytest.importorskip("sentence_transformers")
QUERY, DOCUMENTS = SENTENCES[6], [*SENTENCES[:6], *SENTENCES[7:], " ".join(SENTENCES)]
LABELS = {0: "bad", 1: "so-so", 2: "good"}


def folder_with(folder: Path, labels: int, **config: object) -> Path:
    names = {"id2label": LABELS} if labels == 3 else {}
    tiny_checkpoint(folder, "bert", "classify", max_length=64, num_labels=labels, **names)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.parametrize(
    ("labels", "config"),
    [
        (1, {}),
        (3, {}),
        (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
        (1, {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
        (3, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}),
    ],
)
def test_scores_are_those_of_a_cross_encoder(tmp_path: Path, labels: int, config: dict) -> None:
    folder = folder_with(tmp_path, labels, **config)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=64)
    ours = fusewire.Reranker(folder, device="cpu")
    pairs = [(QUERY, document) for document in DOCUMENTS]
    wanted = reference.predict(pairs)
    for found in (ours.predict(pairs), ours.predict(pairs, batch_size=2)):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=PIPELINE_SCORE)
    np.testing.assert_allclose(ours.predict(pairs[0]), wanted[0], rtol=1e-5, atol=PIPELINE_SCORE)
    assert len(ours.predict([])) == 0


@pytest.mark.parametrize("function", [torch.nn.Identity(), torch.nn.Sigmoid()])
@pytest.mark.parametrize("labels", [1, 3])
def test_what_sentence_transformers_saves_is_scored_alike(
    tmp_path: Path, labels: int, function: torch.nn.Module
) -> None:
    made = folder_with(tmp_path / "made", labels)
    saved = tmp_path / "saved"
    sentence_transformers.CrossEncoder(
        str(made), device="cpu", max_length=64, activation_fn=function
    ).save_pretrained(str(saved))
    pairs = [(QUERY, document) for document in DOCUMENTS]
    wanted = sentence_transformers.CrossEncoder(str(saved), device="cpu").predict(pairs)
    found = fusewire.Reranker(saved, device="cpu").predict(pairs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=PIPELINE_SCORE)


def test_the_default_prompt_stands_before_the_query(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 1)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=64)
    reference.save_pretrained(str(folder))
    told = {"prompts": {"ask": "Is it so that "}, "default_prompt_name": "ask"}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | told))
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    if not getattr(theirs, "prompts", None):
        pytest.skip("sentence-transformers 6 and later have prompts of pairs")
    pairs = [(QUERY, document) for document in DOCUMENTS]
    wanted = theirs.predict(pairs)
    assert not np.allclose(wanted, reference.predict(pairs), atol=PIPELINE_SCORE)
    found = fusewire.Reranker(folder, device="cpu").predict(pairs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=PIPELINE_SCORE)


@pytest.mark.parametrize("labels", [1, 3])
def test_an_empty_document_is_scored_as_by_a_cross_encoder(tmp_path: Path, labels: int) -> None:
    folder = folder_with(tmp_path, labels)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=64)
    pairs = [(QUERY, ""), ("", DOCUMENTS[0]), ("", "")]
    found = fusewire.Reranker(folder, device="cpu").predict(pairs)
    np.testing.assert_allclose(found, reference.predict(pairs), rtol=1e-5, atol=PIPELINE_SCORE)


def test_documents_are_ranked_as_by_a_cross_encoder(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 1)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=64)
    ours = fusewire.Reranker(folder, device="cpu")
    wanted = reference.rank(QUERY, DOCUMENTS, top_k=5, return_documents=True)
    found = ours.rank(QUERY, DOCUMENTS, top_k=5, return_documents=True)
    assert [(r["corpus_id"], r["text"]) for r in found] == [
        (int(r["corpus_id"]), r["text"]) for r in wanted
    ]
    scores = [each["score"] for each in found]
    assert scores == pytest.approx([r["score"] for r in wanted], abs=PIPELINE_SCORE)
    assert len(ours.rank(QUERY, DOCUMENTS)) == len(DOCUMENTS)
    assert "text" not in ours.rank(QUERY, DOCUMENTS)[0]
    assert ours.rank(QUERY, iter(DOCUMENTS), top_k=5, return_documents=True) == found  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="documents: got one str, wanted a list of texts"):
        ours.rank(QUERY, DOCUMENTS[0])
    with pytest.raises(InvalidInput, match="query: got list, wanted a text"):
        ours.rank([QUERY], DOCUMENTS)  # type: ignore[arg-type]


def test_what_a_reranker_cannot_do_is_said(tmp_path: Path) -> None:
    ours = fusewire.Reranker(folder_with(tmp_path / "three", 3))
    with pytest.raises(InvalidInput, match="model: got 3 labels, wanted 1"):
        ours.rank(QUERY, DOCUMENTS)
    with pytest.raises(InvalidInput, match="pairs: got tuple of length 1 at 0"):
        ours.predict([("alone",)])
    for wrong in ([None], [{"q": 1, "d": 2}]):
        with pytest.raises(InvalidInput, match=r"pairs: got \w+ at 0, wanted \(query, document\)"):
            ours.predict(wrong)
    strange = {"sentence_transformers": {"activation_fn": "my.own.Function"}}
    with pytest.raises(CheckpointError, match=r"activation_fn: got 'my\.own\.Function'"):
        fusewire.Reranker(folder_with(tmp_path / "own", 1, **strange))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("labels"), 3)


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> transformers.Pipeline:
    return transformers.pipeline("text-classification", model=str(folder), device="cpu")


def same(ours: list, theirs: list) -> None:
    if theirs and isinstance(theirs[0], list):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
        return
    assert [each["label"] for each in ours] == [each["label"] for each in theirs]
    scores = [each["score"] for each in theirs]
    assert [each["score"] for each in ours] == pytest.approx(scores, abs=PIPELINE_SCORE)


@pytest.mark.parametrize("given", [{}, {"top_k": None}, {"top_k": 2}])
@pytest.mark.parametrize("function", [None, "sigmoid", "none"])
def test_labels_are_those_of_the_pipeline(
    folder: Path, pipeline: transformers.Pipeline, given: dict, function: str | None
) -> None:
    ours = fusewire.Classifier(folder, device="cpu")
    given = given | {"function_to_apply": function}
    texts = SENTENCES[:5]
    same(ours(texts, **given), pipeline(texts, **given))
    same(ours(texts[0], **given), pipeline(texts[0], **given))
    pairs = [{"text": a, "text_pair": b[:40]} for a, b in pairwise(texts)]
    same(ours(pairs, **given), pipeline(pairs, **given))
    tuples = [(pair["text"], pair["text_pair"]) for pair in pairs]
    same(ours(tuples, **given), ours(pairs, **given))


def test_too_long_a_text_is_named_or_cut(folder: Path, pipeline: transformers.Pipeline) -> None:
    ours = fusewire.Classifier(folder, device="cpu")
    texts = ["short", " ".join(SENTENCES), "also short"]
    with pytest.raises(
        InvalidInput, match=r"texts\[1\]: text_input: got \d+ tokens.* at most 64; set truncation"
    ):
        ours(texts)
    same(ours(texts, truncation=True), pipeline(texts, truncation=True, max_length=64))


def test_what_a_classifier_cannot_read_is_said(folder: Path) -> None:
    ours = fusewire.Classifier(folder)
    assert ours.labels == ["bad", "so-so", "good"]
    assert ours([]) == []
    with pytest.raises(InvalidInput, match=r"^truncation: got 'longest_first', wanted true or"):
        ours(["a", "b"], truncation="longest_first")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^function_to_apply: got 'relu', wanted 'none'"):
        ours(["a", "b"], function_to_apply="relu")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="texts: got a mix of texts and pairs"):
        ours(["a", ("a", "b")])
    with pytest.raises(InvalidInput, match=r"texts: got int \(1\) at 1, wanted a str"):
        ours(["a", 1])  # type: ignore[list-item]
    for pair in (("a", 7), {"text": "a", "text_pair": 7}):
        with pytest.raises(InvalidInput, match="pairs: got int at 0, wanted str"):
            ours([pair])  # type: ignore[list-item]
