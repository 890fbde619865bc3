"""Every task gives the answers of transformers' pipelines on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference import ARCHITECTURES, SENTENCES
from tests.tasks.deployed import plain, same_json, text_request
from tests.tolerance import MODEL_FP32, PIPELINE_SCORE

FAMILIES = ["bert", "roberta", "xlm-roberta", "mpnet", "albert"]
TAGS = {i: tag for i, tag in enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"])}
STRATEGIES = ["none", "simple", "first", "average", "max"]
PAIRS = [SENTENCES[(index + 5) % len(SENTENCES)] for index in range(4)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_states_are_those_of_feature_extraction(deploy, architecture):
    deployed = deploy(architecture, "hidden")
    extract = deployed.pipeline("feature-extraction")
    states = deployed.ask(text_request(*SENTENCES[:4]))["last_hidden_state"]
    wanted = [np.array(extract(sentence))[0] for sentence in SENTENCES[:4]]
    assert states.shape == (4, max(map(len, wanted)), 64)
    assert states.dtype == np.float32
    for row, one in zip(states, wanted, strict=True):
        assert np.abs(row[: len(one)] - one).max() <= MODEL_FP32
        assert not row[len(one) :].any()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_pair_has_the_hidden_states_of_its_pair_encoding(deploy, architecture):
    deployed = deploy(architecture, "hidden", max_length=128)
    states = deployed.ask(text_request(*SENTENCES[:4], pairs=PAIRS))["last_hidden_state"]
    for row, text, pair in zip(states, SENTENCES, PAIRS, strict=False):
        encoded = deployed.tokenizer(text, pair, return_tensors="pt")
        with torch.no_grad():
            wanted = deployed.reference(**encoded).last_hidden_state[0].numpy()
        assert np.abs(row[: len(wanted)] - wanted).max() <= MODEL_FP32


KINDS = {
    "single": {"num_labels": 3, "id2label": {0: "bad", 1: "so-so", 2: "good"}},
    "multi": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "regression": {"num_labels": 1, "problem_type": "regression"},
    "rerank": {"num_labels": 1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_pair", [False, True])
def test_classify_scores_as_the_pipeline(deploy, kind, with_pair):
    for architecture in ("bert", "roberta", "distilbert", "electra", "modernbert"):
        deployed = deploy(architecture, "classify", max_length=128, **KINDS[kind])
        classify = deployed.pipeline("text-classification", top_k=None)
        pairs = PAIRS if with_pair else None
        answer = deployed.ask(text_request(*SENTENCES[:4], pairs=pairs))
        names = [deployed.reference.config.id2label[i] for i in range(KINDS[kind]["num_labels"])]
        for row in range(4):
            query = {"text": SENTENCES[row]} | ({"text_pair": PAIRS[row]} if with_pair else {})
            wanted = {label["label"]: label["score"] for label in classify(query)}
            got = dict(zip(names, answer["scores"][row].tolist(), strict=True))
            assert got == pytest.approx(wanted, abs=PIPELINE_SCORE, rel=1e-5)
            assert answer["label"][row, 0].decode() == max(wanted, key=wanted.__getitem__)


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_an_empty_second_text_is_none_as_in_the_pipeline(deploy, architecture):
    deployed = deploy(architecture, "classify", **KINDS["single"])
    classify = deployed.pipeline("text-classification", top_k=None)
    answer = deployed.ask(text_request(*SENTENCES[:2], pairs=["", PAIRS[1]]))
    for row, pair in enumerate(("", PAIRS[1])):
        query = {"text": SENTENCES[row], "text_pair": pair}
        wanted = sorted(label["score"] for label in classify(query))
        got = np.sort(answer["scores"][row])
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=PIPELINE_SCORE)


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_an_empty_document_is_scored_as_one_in_a_list_of_pairs(deploy, architecture):
    deployed = deploy(architecture, "classify", **KINDS["rerank"])
    documents = ["", PAIRS[1]]
    found = deployed.ask(text_request(*SENTENCES[:2], pairs=documents, function_to_apply="none"))
    encoded = deployed.tokenizer(
        SENTENCES[:2], documents, padding=True, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        wanted = deployed.reference(**encoded).logits.numpy()
    np.testing.assert_allclose(found["scores"], wanted, atol=MODEL_FP32)


@pytest.mark.parametrize("function", ["none", "sigmoid", "softmax"])
def test_function_to_apply_is_that_of_the_pipeline(deploy, function):
    deployed = deploy("bert", "classify", **KINDS["single"])
    classify = deployed.pipeline("text-classification", top_k=None)
    answer = deployed.ask(text_request(SENTENCES[0], function_to_apply=function))
    labels = classify({"text": SENTENCES[0]}, function_to_apply=function)
    wanted = sorted(label["score"] for label in labels)
    np.testing.assert_allclose(np.sort(answer["scores"][0]), wanted, rtol=1e-5, atol=PIPELINE_SCORE)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_entities_are_those_of_the_pipeline(deploy, architecture, strategy):
    deployed = deploy(architecture, "tag", num_labels=len(TAGS), id2label=TAGS, seed=1)
    tag = deployed.pipeline("token-classification", aggregation_strategy=strategy)
    sentences = [*SENTENCES[:6], SENTENCES[8], "naïve Zoë 日本 met İpek in 東京!"]
    got = deployed.ask_json("entities", text_request(*sentences, aggregation_strategy=strategy))
    assert sum(map(len, got)) >= 8  # otherwise equality proves little
    for row, sentence in zip(got, sentences, strict=True):
        same_json(row, plain(tag(sentence)), PIPELINE_SCORE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("masks", [1, 2])
def test_candidates_are_those_of_fill_mask(deploy, architecture, masks):
    deployed = deploy(architecture, "fill")
    fill = deployed.pipeline("fill-mask")
    mask = deployed.tokenizer.mask_token
    sentences = [
        " ".join([*words[:2], *[mask, "and"] * masks, *words[3:9], "."])
        for words in (sentence.split() for sentence in SENTENCES[:4])
    ]
    got = deployed.ask_json("candidates", text_request(*sentences, top_k=7))
    for row, sentence in zip(got, sentences, strict=True):
        same_json(row, plain(fill(sentence, top_k=7)), PIPELINE_SCORE)


def test_fill_gives_five_candidates_by_default(deploy):
    deployed = deploy("bert", "fill")
    [candidates] = deployed.ask_json("candidates", text_request("the [MASK] is cold"))
    assert len(candidates) == 5
    assert list(candidates[0]) == ["score", "token", "token_str", "sequence"]
