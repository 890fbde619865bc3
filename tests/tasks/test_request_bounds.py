"""A small request cannot ask for an answer, or for work, without bound."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine
from fusewire.errors import InvalidInput
from fusewire.models import task_heads

from tests.reference import SENTENCES
from tests.tasks.deployed import id_request, text_request


def refusal(engine: EncoderEngine, request) -> str:
    [error] = engine.answer([request])
    assert isinstance(error, InvalidInput), error
    return str(error)


def test_windows_over_a_context_are_counted_before_they_are_made(deploy):
    deployed = deploy("bert", "answer")
    context = " ".join(SENTENCES) * 40
    text = refusal(
        deployed.engine, text_request("who?", pairs=[context], max_length=16, doc_stride=8)
    )
    assert "text_pair: got texts that take" in text
    assert "at most 1000 in a request; shorten the context" in text
    # The same text is answered in windows that overlap less.
    deployed.ask(text_request("who?", pairs=[context], max_length=64, doc_stride=0))


def test_the_windows_of_all_rows_count_together(deploy):
    deployed = deploy("bert", "answer")
    context = " ".join(SENTENCES) * 2
    few = text_request("who?", pairs=[context], max_length=16, doc_stride=8)
    deployed.ask(few)
    rows = 8
    many = text_request(*["who?"] * rows, pairs=[context] * rows, max_length=16, doc_stride=8)
    assert "at most 1000 in a request" in refusal(deployed.engine, many)


def test_the_counted_windows_are_those_that_are_made(deploy, monkeypatch):
    deployed = deploy("bert", "answer")
    request = text_request("who?", pairs=[" ".join(SENTENCES)], max_length=16, doc_stride=3)
    deployed.ask(request)
    made = deployed.engine.last_counts.sequences
    monkeypatch.setattr("fusewire.tasks.text_encoder.MOST_WINDOWS", made - 1)
    deployed.ask(request)
    monkeypatch.setattr("fusewire.tasks.text_encoder.MOST_WINDOWS", made - 2)
    assert f"take {made - 1} more windows" in refusal(deployed.engine, request)


def test_hidden_states_of_padding_are_bounded(deploy):
    deployed = deploy("bert", "hidden")
    wide = np.zeros((1, 65), np.int64)
    mask = wide.copy()
    mask[0, 64] = 1
    text = refusal(deployed.engine, id_request(wide, mask))
    assert "input_ids: got rows of 65 with their padding, wanted at most 64; leave out" in text
    assert deployed.ask(id_request(wide[:, 1:], mask[:, 1:]))["last_hidden_state"].shape[1] == 64
    # Padding that is not returned may have any width.
    embedding = deploy("bert", "embed").ask(id_request(wide, mask))["embedding"]
    assert embedding.shape[0] == 1


def test_candidates_are_counted_over_all_masks(deploy):
    deployed = deploy("bert", "fill")
    text = refusal(deployed.engine, text_request(*["[MASK] " * 50] * 4, top_k=101))
    assert "top_k: got 101 for each of 200 mask tokens, wanted at most 20000" in text


@pytest.mark.parametrize("masks_at_once", [1, 2])
def test_masks_scored_some_at_a_time_give_the_same(deploy, monkeypatch, masks_at_once):
    deployed = deploy("bert", "fill")
    request = text_request("a [MASK] [MASK] day", "the [MASK]", "[MASK] and [MASK]")
    wanted = deployed.ask_json("candidates", request)
    monkeypatch.setattr(
        task_heads, "_MOST_SCORES", masks_at_once * deployed.engine.model.vocab_size
    )
    assert json.dumps(deployed.ask_json("candidates", request)) == json.dumps(wanted)
