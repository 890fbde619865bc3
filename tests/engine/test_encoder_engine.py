"""The engine: batching, faults keep to the request they belong to."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.errors import ComputeFailed, InvalidInput
from fusewire.settings import EngineSettings
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.engine.counting import HIDDEN, CountingModel, answered, engine, request
from tests.reference import tiny_checkpoint
from tests.tolerance import BATCHED_VERSUS_ALONE


def test_requests_share_batches_within_the_budget(tmp_path):
    model = CountingModel()
    rows = [[7] * n for n in (3, 9, 1, 30, 4, 8)]
    got = engine(tmp_path, model, max_batch_tokens=20)
    answers = got.answer([request(rows[0], rows[1]), request(rows[2]), request(*rows[3:])])
    answered(answers[0], rows[0], rows[1])
    answered(answers[1], rows[2])
    answered(answers[2], *rows[3:])
    assert model.seen == [[30], [9, 8, 3], [4, 1]]
    counts = got.last_counts
    assert (counts.sequences, counts.tokens, counts.micro_batches) == (6, 55, 3)
    assert counts.padding_tokens == 0
    assert counts.compute_seconds > 0
    assert counts.tokenize_seconds > 0


def test_padding_is_measured_not_assumed(tmp_path):
    class Padding(CountingModel):
        def encode(self, batch):
            states = super().encode(batch)
            self.computed_tokens += 3
            return states

    got = engine(tmp_path, Padding())
    got.answer([request([1, 2, 3, 4])])
    assert got.last_counts.padding_tokens == 3


def test_out_of_memory_is_tried_again_in_halves(tmp_path, caplog):
    model = CountingModel(room=12)
    with caplog.at_level(logging.WARNING):
        answers = engine(tmp_path, model).answer([request([5] * 7), request([6] * 8)])
    answered(answers[0], [5] * 7)
    answered(answers[1], [6] * 8)
    assert model.seen == [[8, 7], [8], [7]]
    assert "out of memory on 2 sequences" in caplog.text


def test_what_does_not_fit_even_then_fails_alone(tmp_path):
    model = CountingModel(room=12)
    answers = engine(tmp_path, model).answer([request([5] * 20), request([6] * 3)])
    assert isinstance(answers[0], ComputeFailed)
    assert "lower max_batch_tokens" in str(answers[0])
    answered(answers[1], [6] * 3)
    assert model.seen == [[20, 3], [20], [3]]


def test_a_defect_fails_its_micro_batch_and_no_other(tmp_path, caplog):
    model = CountingModel(poison=99)
    got = engine(tmp_path, model, max_batch_tokens=10)
    answers = got.answer([request([1] * 6), request([99] * 3), request([2] * 8)])
    assert isinstance(answers[0], ComputeFailed)
    assert isinstance(answers[1], ComputeFailed)
    answered(answers[2], [2] * 8)
    assert "ZeroDivisionError" in str(answers[1])
    assert "secret" not in str(answers[1])
    assert "secret" in caplog.text  # the log has what the client must not see


def test_a_request_that_failed_is_not_computed_further(tmp_path):
    model = CountingModel(poison=99)
    got = engine(tmp_path, model, max_batch_tokens=10)
    [answer] = got.answer([request([99] * 9, [1] * 8)])
    assert isinstance(answer, ComputeFailed)
    assert model.seen == [[9]]


def test_nothing_to_do_is_nothing_done(tmp_path):
    model = CountingModel()
    assert engine(tmp_path, model).answer([]) == []
    assert model.seen == []


NAMES = st.sampled_from(["input_ids", "attention_mask", "token_type_ids", "text_input", "image"])
NUMBERS = st.integers(-2, 3) | st.sampled_from([999, 1000, 2**62, -(2**63)])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = (
    arrays(np.int64, SHAPES, elements=NUMBERS)
    | arrays(np.int32, SHAPES)
    | arrays(np.float32, SHAPES)
    | arrays(np.bool_, SHAPES)
)
VALUES = st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=5)
PARAMETERS = st.dictionaries(
    st.sampled_from(["truncate", "max_length", "top_k"]) | st.text(max_size=4), VALUES, max_size=2
)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.dictionaries(NAMES, TENSORS, max_size=3), PARAMETERS), max_size=4))
def test_generated_requests_are_answered_or_refused(tmp_path_factory, wild):
    got = engine(tmp_path_factory.getbasetemp(), CountingModel())
    probe = request([4, 5, 6])
    answers = got.answer([*(Request(inputs, values) for inputs, values in wild), probe])
    answered(answers.pop(), [4, 5, 6])
    for answer in answers:
        assert isinstance(answer, (dict, InvalidInput)), answer


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    reference = tiny_checkpoint(folder, "bert", "hidden")
    return SimpleNamespace(folder=folder, vocabulary=reference.config.vocab_size)


def test_batched_answers_are_those_of_requests_alone(real):
    random = np.random.default_rng(0)
    rows = [random.integers(5, real.vocabulary, n).tolist() for n in range(1, 33)]
    got = EncoderEngine(real.folder, "hidden")
    small = EncoderEngine(real.folder, "hidden", EngineSettings(max_batch_tokens=70))
    together = got.answer([request(row) for row in rows])
    split = small.answer([request(row) for row in rows])
    assert got.last_counts.micro_batches == 1 < small.last_counts.micro_batches
    assert got.last_counts.tokens == sum(map(len, rows))
    assert got.last_counts.padding_tokens == 0
    for row, batched, part in zip(rows, together, split, strict=True):
        [alone] = got.answer([request(row)])
        assert np.abs(batched[HIDDEN] - alone[HIDDEN]).max() <= BATCHED_VERSUS_ALONE
        assert np.abs(part[HIDDEN] - alone[HIDDEN]).max() <= BATCHED_VERSUS_ALONE
