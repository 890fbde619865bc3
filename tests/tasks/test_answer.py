"""Answers are those of transformers' question-answering pipeline.

transformers 5 no longer has that pipeline, so its rule is implemented here as plain loops over
every span of every window, on transformers' own tokens and logits.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fusewire.errors import InvalidInput
from fusewire.tasks.spans import best_spans
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import SENTENCES
from tests.tasks.deployed import id_request, same_json, text_request
from tests.tolerance import PIPELINE_SCORE

CONTEXT = " ".join(SENTENCES[:4])  # several windows of 64 tokens
QUESTIONS = ["Where does Clara live?", "Who met Barack Obama?", "What is the capital?"]
FAMILIES = ["bert", "roberta", "xlm-roberta", "distilbert"]


def spans_of_windows(deployed, question, context, limit, stride, max_answer_len):
    """Returns ((score, text, start, end) of every span, score of no answer), over all windows."""
    tokenizer = deployed.tokenizer
    encoded = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=limit,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    spans, none_score = [], 1.0
    for window in range(len(encoded["input_ids"])):
        names = [name for name in tokenizer.model_input_names if name in encoded]
        inputs = {name: torch.tensor([encoded[name][window]]) for name in names}
        with torch.no_grad():
            output = deployed.reference(**inputs)
        parts = encoded.sequence_ids(window)
        ids = encoded["input_ids"][window]
        inside = [
            i for i, part in enumerate(parts) if part == 1 or ids[i] == tokenizer.cls_token_id
        ]
        start = _probabilities(output.start_logits[0], inside)
        end = _probabilities(output.end_logits[0], inside)
        none_score = min(none_score, start[0] * end[0])
        found = []
        for i in inside[1:]:
            for j in inside[1:]:
                if i <= j < i + max_answer_len:
                    found.append((start[i] * end[j], *_characters(encoded, window, i, j)))
        spans.append(sorted(found, key=lambda one: -one[0]))
    return spans, none_score


def expected(deployed, question, context, limit, stride, max_answer_len, top_k, impossible):
    windows, none_score = spans_of_windows(
        deployed, question, context, limit, stride, max_answer_len
    )
    answers: dict[str, dict] = {}
    for window in windows:
        for score, first, last in window[: top_k * 2 + 10]:
            text = context[first:last]
            answer = {"score": 0.0, "start": first, "end": last, "text": text}
            answers.setdefault(text.lower(), answer)["score"] += score
    found = list(answers.values())
    if impossible:
        found.append({"score": none_score, "start": 0, "end": 0, "text": ""})
    return sorted(found, key=lambda answer: -answer["score"])[:top_k]


def _probabilities(logits, inside):
    top = max(logits[i].item() for i in inside)
    weights = {i: math.exp(logits[i].item() - top) for i in inside}
    total = sum(weights.values())
    return {0: 0.0} | {i: weight / total for i, weight in weights.items()}


def _characters(encoded, window, first, last):
    encoding = encoded[window]
    words = encoding.token_to_word(first), encoding.token_to_word(last)
    if words[0] is None or words[1] is None:
        return encoding.offsets[first][0], encoding.offsets[last][1]
    return encoding.word_to_chars(words[0], 1)[0], encoding.word_to_chars(words[1], 1)[1]


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    ("context", "top_k", "impossible"),
    [(SENTENCES[2], 1, False), (CONTEXT, 1, False), (CONTEXT, 4, True), (SENTENCES[3], 3, True)],
    ids=["short", "windows", "windows-top-4", "short-top-3"],
)
def test_answers_are_those_of_the_pipeline(deploy, architecture, context, top_k, impossible):
    deployed = deploy(architecture, "answer")
    got = deployed.ask_json(
        "answer",
        text_request(
            *QUESTIONS,
            pairs=[context] * len(QUESTIONS),
            top_k=top_k,
            handle_impossible_answer=impossible,
        ),
    )
    for row, question in zip(got, QUESTIONS, strict=True):
        wanted = expected(deployed, question, context, 64, 32, 15, top_k, impossible)
        same_json(row, wanted[0] if top_k == 1 else wanted, PIPELINE_SCORE)


def test_windows_and_answers_have_the_asked_for_lengths(deploy):
    deployed = deploy("bert", "answer")
    for limit, stride, longest in [(40, 10, 3), (50, 5, 1), (33, 0, 40)]:
        [got] = deployed.ask_json(
            "answer",
            text_request(
                QUESTIONS[0],
                pairs=[CONTEXT],
                max_length=limit,
                doc_stride=stride,
                max_answer_len=longest,
            ),
        )
        [wanted] = expected(deployed, QUESTIONS[0], CONTEXT, limit, stride, longest, 1, False)
        same_json(got, wanted, PIPELINE_SCORE)
        assert got["text"] == CONTEXT[got["start"] : got["end"]]


def test_one_long_context_becomes_many_sequences_of_one_request(deploy):
    deployed = deploy("bert", "answer")
    deployed.ask(text_request(QUESTIONS[0], pairs=[CONTEXT]))
    assert deployed.engine.last_counts.sequences > 2


def test_a_question_that_leaves_no_room_for_the_context_is_refused(deploy):
    with pytest.raises(InvalidInput, match=r"text_input: got a question of \d+ tokens.*doc_stride"):
        deploy("bert", "answer").ask(text_request(CONTEXT, pairs=[CONTEXT]))
    with pytest.raises(InvalidInput, match=r"windows of 64 tokens that share 60"):
        deploy("bert", "answer").ask(text_request("Who?", pairs=[CONTEXT], doc_stride=60))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_ids_answer_with_columns_instead_of_characters(deploy, architecture):
    deployed = deploy(architecture, "answer")
    encoded = deployed.tokenizer(QUESTIONS[0], SENTENCES[2])
    ids = encoded["input_ids"]
    padded = [[0, 0, *ids]]  # padding on the left shifts the columns, not the answer
    mask = [[0, 0, *[1] * len(ids)]]
    types = [[0, 0, *encoded["token_type_ids"]]] if "token_type_ids" in encoded else None
    [plain] = deployed.ask_json("answer", id_request([ids], types=types and [types[0][2:]]))
    [left] = deployed.ask_json("answer", id_request(padded, mask, types))
    [windows], _ = spans_of_windows(deployed, QUESTIONS[0], SENTENCES[2], 64, 32, 15)
    assert plain["score"] == pytest.approx(windows[0][0], abs=PIPELINE_SCORE)
    assert plain["start"] is plain["end"] is None
    first, last = plain["tokens"]
    assert plain["text"] == deployed.tokenizer.decode(ids[first : last + 1])
    assert left == plain | {"tokens": [first + 2, last + 2]}


def test_an_empty_context_has_the_empty_answer(deploy):
    [got] = deploy("bert", "answer").ask_json("answer", text_request("Who?", pairs=[""]))
    assert got == {"text": "", "start": 0, "end": 0, "score": 1.0}


def test_ids_without_a_context_are_refused(deploy):
    with pytest.raises(InvalidInput, match="input_ids: got ids without a context"):
        deploy("roberta", "answer").ask(id_request([[0, 9, 9, 2]]))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=12
    ),
    st.integers(1, 14),
    st.integers(1, 30),
)
def test_the_best_spans_are_the_best_of_all_spans(pairs, longest, count):
    start, end = np.array(pairs, np.float32).T
    every = [
        (start[i] * end[j], i, j)
        for i in range(len(pairs))
        for j in range(i, min(i + longest, len(pairs)))
        if start[i] * end[j] > 0
    ]
    got = best_spans(start, end, longest, count)
    assert len({(i, j) for i, j, _ in got}) == len(got) == min(count, len(every))
    assert [score for _, _, score in got] == sorted((e[0] for e in every), reverse=True)[:count]
    assert all((np.float32(score), i, j) in every for i, j, score in got)
