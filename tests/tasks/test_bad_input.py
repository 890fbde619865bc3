"""Each bad request gets its own message, and its neighbours get the same answers as without it."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.errors import InvalidInput
from fusewire.tasks.inputs import MOST_CHARACTERS

from tests.reference import SENTENCES
from tests.tasks.deployed import Deployment, id_request, text_request, texts

IDS = np.array([[2, 9, 8, 3]], np.int64)
LONG = " ".join(SENTENCES)


def raw(**inputs: np.ndarray) -> Request:
    return Request(inputs)


# name -> (request, field, what the message must contain). All are for a `hidden` deployment (pairs
# and single texts) with 64 positions; the tasks' own cases are below.
CASES = {
    "nothing": (raw(), "text_input", "neither text_input nor input_ids"),
    "text and ids": (
        raw(text_input=texts("a"), input_ids=IDS),
        "text_input",
        "got text_input and input_ids together, wanted texts or ids; send one of the two",
    ),
    "text and mask": (
        raw(text_input=texts("a"), attention_mask=IDS),
        "text_input",
        "text_input and attention_mask together",
    ),
    "pair alone": (raw(text_pair=texts("a")), "text_pair", "wanted text_input with it"),
    "mask alone": (raw(attention_mask=IDS), "attention_mask", "wanted input_ids with it"),
    "unknown input": (
        raw(text_input=texts("a"), image=texts("a")),
        "image",
        "wanted one of text_input, text_pair, input_ids, attention_mask, token_type_ids",
    ),
    "empty text list": (raw(text_input=np.empty((0, 1), object)), "text_input", "got no texts"),
    "two texts a row": (
        raw(text_input=np.array([[b"a", b"b"]], object)),
        "text_input",
        r"got shape \[1, 2\], wanted shape \[n, 1\]",
    ),
    "text without batch": (raw(text_input=np.array([b"a"], object)), "text_input", r"shape \[1\]"),
    "text of numbers": (
        raw(text_input=np.ones((1, 1), np.float32)),
        "text_input",
        "got dtype float32, wanted strings",
    ),
    "text that is an object": (
        raw(text_input=np.array([[7]], object)),
        "text_input",
        "got int, wanted bytes of UTF-8 text",
    ),
    "bad utf-8": (
        text_request(b"fine", b"caf\xe9 au lait"),
        "text_input",
        r"^text_input\[1\]: got byte 0xe9 at offset 3, wanted UTF-8; encode the text as UTF-8",
    ),
    "bad utf-8 in a pair": (
        raw(text_input=texts("a"), text_pair=texts(b"\xff")),
        "text_pair",
        "got byte 0xff at offset 0, wanted UTF-8",
    ),
    "lone surrogate": (
        raw(text_input=np.array([["\ud800"]], object)),
        "text_input",
        "got a lone surrogate at offset 0",
    ),
    "more characters than memory is for": (
        text_request("a" * (MOST_CHARACTERS + 1)),
        "text_input",
        "got 16777217 characters, wanted at most 16777216; cut the text",
    ),
    "fewer pairs than texts": (
        text_request("a", "b", pairs=["c"]),
        "text_pair",
        "got 1 text, wanted 2, as many as text_input",
    ),
    "too long": (
        text_request("short", LONG),
        "text_input",
        r"^text_input\[1\]: got \d{3} tokens, wanted at most 64; set truncate or shorten the text",
    ),
    "far too long": (
        text_request("short", LONG, LONG * 2000),
        "text_input",
        r"^text_input\[2\]: got \d+ characters, at least \d+ tokens, wanted at most 64; set",
    ),
    "too long pair": (text_request("a", pairs=[LONG]), "text_input", "wanted at most 64"),
    "no room for a text": (
        text_request("short", LONG, truncate=True, max_length=2),
        "max_length",
        "^max_length: got 2, wanted more than the 2 special tokens; raise it",
    ),
    "no ids": (raw(input_ids=np.empty((1, 0), np.int64)), "input_ids", r"got shape \[1, 0\]"),
    "no rows of ids": (raw(input_ids=np.empty((0, 4), np.int64)), "input_ids", "at least 1 token"),
    "ids without batch": (raw(input_ids=IDS[0]), "input_ids", r"got shape \[4\], wanted shape \[n"),
    "ids of another dtype": (
        raw(input_ids=IDS.astype(np.int32)),
        "input_ids",
        "got dtype int32, wanted dtype int64; convert to int64",
    ),
    "negative id": (
        id_request([[2, -1, 3]]),
        "input_ids",
        r"got -1, wanted 0\.\.\d+, the model's vocabulary; use this model's tokenizer",
    ),
    "id beyond the vocabulary": (
        id_request([[2, 3], [2, 10**9]]),
        "input_ids",
        r"^input_ids\[1\]: got 1000000000, wanted .*; use this model's tokenizer",
    ),
    "smallest id there is": (id_request([[-(2**63)]]), "input_ids", f"got {-(2**63)}"),
    "too many ids": (
        id_request([[9] * 65]),
        "input_ids",
        "got 65 tokens, wanted at most 64; shorten",
    ),
    "too many ids, truncate set": (
        id_request([[9] * 65], truncate=True),
        "input_ids",
        "only texts can be truncated by the server",
    ),
    "more ids than the request's own limit": (
        id_request([[9] * 9], max_length=8),
        "input_ids",
        "got 9 tokens, wanted at most 8",
    ),
    "mask of another value": (
        id_request(IDS, [[1, 1, 2, 1]]),
        "attention_mask",
        "got 2, wanted 0 for padding, 1 for tokens; correct the mask",
    ),
    "negative mask": (id_request(IDS, [[1, 1, -1, 1]]), "attention_mask", "got -1"),
    "mask of another shape": (
        id_request(IDS, [[1, 1, 1]]),
        "attention_mask",
        r"got shape \[1, 3\], wanted shape \[1, 4\], that of input_ids",
    ),
    "mask of another dtype": (
        raw(input_ids=IDS, attention_mask=np.ones((1, 4), np.float32)),
        "attention_mask",
        "got dtype float32",
    ),
    "mask of zeros": (
        id_request([[2, 3], [2, 3]], [[1, 1], [0, 0]]),
        "attention_mask",
        r"^attention_mask\[1\]: got all zeros, wanted at least one 1",
    ),
    "token type out of range": (
        id_request(IDS, types=[[0, 0, 2, 0]]),
        "token_type_ids",
        r"got 2, wanted 0\.\.1; correct or omit it",
    ),
    "token type that is 0 in 32 bits": (
        id_request(IDS, types=[[0, 2**32, 0, 0]]),
        "token_type_ids",
        f"got {2**32}, wanted",
    ),
    "negative token type": (id_request(IDS, types=[[0, -1, 0, 0]]), "token_type_ids", "got -1"),
    "token types of another shape": (
        id_request(IDS, types=[[0, 0]]),
        "token_type_ids",
        r"got shape \[1, 2\]",
    ),
    "unknown parameter": (
        text_request("a", trunkate=True),
        "trunkate",
        r"got true, wanted one of the parameters of hidden \(truncate, max_length\); remove it",
    ),
    "parameter of another task": (
        text_request("a", top_k=3),
        "top_k",
        "wanted one of the parameters of hidden",
    ),
    "ill-typed flag": (text_request("a", truncate=1), "truncate", "got 1, wanted true or false"),
    "misspelt flag": (text_request("a", truncate="yes"), "truncate", "got 'yes', wanted true or"),
    "ill-typed number": (
        text_request("a", max_length=8.0),
        "max_length",
        "got 8.0, wanted a whole number",
    ),
    "flag for a number": (text_request("a", max_length=True), "max_length", "got true, wanted a w"),
    "number below its bound": (
        text_request("a", max_length=0),
        "max_length",
        "got 0, wanted greater than or equal to 1; correct or remove it",
    ),
    "limit above the deployment's": (
        text_request("a", max_length=65),
        "max_length",
        "got 65, wanted at most 64, the longest this deployment serves; lower or remove it",
    ),
}


def refused(deployed: Deployment, request: Request, field: str, message: str) -> None:
    """Asserts that the request is rejected with this message; its neighbours are answered with and
    without it."""
    good = [
        text_request(SENTENCES[0], pairs=[SENTENCES[4]] if deployed.task == "answer" else None),
        text_request(
            SENTENCES[1], SENTENCES[2], pairs=["a b", "c d"] if deployed.task == "answer" else None
        ),
    ]
    if deployed.task == "fill":
        good = [text_request("a [MASK] day"), text_request("the [MASK]", "[MASK] it is")]
    alone = deployed.engine.answer(good)
    first, error, second = deployed.engine.answer([good[0], request, good[1]])
    assert isinstance(error, InvalidInput), error
    assert error.field == field
    assert re.search(message, str(error)), str(error)
    assert re.fullmatch(r"\w+(\[\d\])?: got .*, wanted .*; .*", str(error), re.DOTALL), str(error)
    assert str(deployed.folder) not in str(error)
    for got, wanted in zip((first, second), alone, strict=True):
        assert got.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_by_name_and_harms_no_other(deploy, case):
    refused(deploy("bert", "hidden"), *CASES[case])


def test_the_first_id_beyond_the_vocabulary_is_refused_and_the_last_inside_is_not(deploy):
    deployed = deploy("bert", "hidden")
    size = deployed.engine.model.vocab_size
    deployed.ask(id_request([[size - 1]]))
    refused(deployed, id_request([[size]]), "input_ids", rf"got {size}, wanted 0\.\.{size - 1},")


def test_the_longest_row_is_served(deploy):
    deployed = deploy("bert", "hidden")
    assert deployed.ask(id_request([[9] * 64]))["last_hidden_state"].shape == (1, 64, 64)


TASK_CASES = {
    "pair for embed": (
        "embed",
        text_request("a", pairs=["b"]),
        "text_pair",
        "got a second text, wanted none, as embed takes one text; leave it out",
    ),
    "pair for tag": ("tag", text_request("a", pairs=["b"]), "text_pair", "tag takes one text"),
    "pair for fill": ("fill", text_request("[MASK]", pairs=["b"]), "text_pair", "fill takes one"),
    "no pair for answer": (
        "answer",
        text_request("who?"),
        "text_pair",
        "got nothing, wanted a second text, which answer needs",
    ),
    "truncate for answer": (
        "answer",
        text_request("who?", pairs=["me"], truncate=True),
        "truncate",
        "wanted one of the parameters of answer",
    ),
    "no mask token": (
        "fill",
        text_request("a [MASK]", "none here"),
        "text_input",
        r"^text_input\[1\]: got no mask token, wanted '\[MASK\]' \(id 4\) once or more",
    ),
    "no mask id": ("fill", id_request([[2, 9, 3]]), "input_ids", "got no mask token"),
    "mask token cut off": (
        "fill",
        text_request(LONG + " [MASK]", truncate=True),
        "text_input",
        "a truncated text may have lost it",
    ),
    "more candidates than words": (
        "fill",
        text_request("a [MASK]", top_k=999),
        "top_k",
        r"got 999, wanted at most \d+, the vocabulary; lower it",
    ),
    "no candidates": ("fill", text_request("a [MASK]", top_k=0), "top_k", "got 0, wanted greater"),
    "too many candidates": (
        "fill",
        text_request("a [MASK]", top_k="1001"),
        "top_k",
        "got 1001, wanted less than or equal to 1000",
    ),
    "unknown pooling": (
        "embed",
        text_request("a", pooling="sum"),
        "pooling",
        "got 'sum', wanted 'cls', 'mean', 'max' or 'last'",
    ),
    "pooling that is a number": ("embed", text_request("a", pooling=3), "pooling", "wanted a word"),
    "unknown strategy": (
        "tag",
        text_request("a", aggregation_strategy="best"),
        "aggregation_strategy",
        "got 'best', wanted 'none', 'simple', 'first', 'average' or 'max'",
    ),
    "unknown function": (
        "classify",
        text_request("a", function_to_apply="relu"),
        "function_to_apply",
        "wanted 'none', 'sigmoid' or 'softmax'",
    ),
    "no answer length": (
        "answer",
        text_request("who?", pairs=["me"], max_answer_len=0),
        "max_answer_len",
        "got 0, wanted greater than or equal to 1",
    ),
    "negative stride": (
        "answer",
        text_request("who?", pairs=["me"], doc_stride=-1),
        "doc_stride",
        "got -1, wanted greater than or equal to 0",
    ),
}


@pytest.mark.parametrize("case", TASK_CASES)
def test_tasks_refuse_what_they_cannot_use(deploy, case):
    task, request, field, message = TASK_CASES[case]
    refused(deploy("bert", task), request, field, message)


@pytest.mark.parametrize("architecture", ["roberta", "distilbert"])
def test_models_without_token_types_take_only_zeros(deploy, architecture):
    deployed = deploy(architecture, "hidden")
    deployed.ask(id_request(IDS, types=np.zeros_like(IDS)))
    types = np.ones_like(IDS)
    refused(deployed, id_request(IDS, types=types), "token_type_ids", r"got 1, wanted 0\.\.0")


def test_texts_need_a_tokenizer_and_ids_do_not(deploy, tmp_path):
    deployed = deploy("bert", "hidden")
    bare = tmp_path / "bare"
    shutil.copytree(deployed.folder, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    engine = EncoderEngine(bare, "hidden")
    by_ids, by_text = engine.answer([id_request(IDS), text_request("a")])
    wanted = deployed.ask(id_request(IDS))
    np.testing.assert_array_equal(by_ids["last_hidden_state"], wanted["last_hidden_state"])
    assert isinstance(by_text, InvalidInput)
    assert "put the tokenizer into the model folder: tokenizer.json or" in str(by_text)


def test_everything_bad_at_once_leaves_the_good_alone(deploy):
    deployed = deploy("bert", "hidden")
    good = text_request(SENTENCES[0])
    [wanted] = deployed.engine.answer([good])
    mixed = [request for case in CASES.values() for request in (case[0], good)]
    answers = deployed.engine.answer(mixed)
    assert all(isinstance(answer, InvalidInput) for answer in answers[::2])
    for answer in answers[1::2]:
        np.testing.assert_array_equal(answer["last_hidden_state"], wanted["last_hidden_state"])
