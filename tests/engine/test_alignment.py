"""Texts come with what they attend to in their source, where that is asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine import aligner, generation_loop
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import ComputeFailed, InvalidInput

from tests.engine.generating import ask, between_steps, tiny_engine
from tests.engine.test_beam_search import engine_of, loaded, random_prompt
from tests.tolerance import PIPELINE_SCORE


@pytest.fixture(scope="module", params=["bart", "t5"])
def model(request, tmp_path_factory) -> Iterator[tuple[Any, GenerationEngine]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = loaded(folder, request.param).model
    reference.set_attn_implementation("eager")
    with engine_of(folder) as engine:
        yield reference, engine


@pytest.mark.parametrize(
    ("parameters", "begin"),
    [
        ({}, []),
        ({"num_beams": 4, "n": 3}, []),
        ({"num_beams": 6, "n": 2, "num_beam_groups": 3, "diversity_penalty": 1.0}, []),
        ({"temperature": 2.0, "seed": 5, "n": 2}, []),
        ({"temperature": 2.0, "seed": 5, "n": 2, "best_of": 3}, []),
        ({"num_beams": 3, "decoder_input_ids": [20, 30, 40]}, [20, 30, 40]),
        ({"decoder_input_ids": [20, 30, 40]}, [20, 30, 40]),
        ({"max_new_tokens": 1}, []),
    ],
)
def test_each_token_attends_as_transformers_says_where_it_is_chosen(model, parameters, begin):
    reference, engine = model
    chosen, n = random.Random(5), parameters.get("n", 1)
    sources = [random_prompt(chosen, 40) for _ in range(3)]
    parameters = {"max_new_tokens": 14, "alignment": True, **parameters}
    asked = [(source, ask(engine, source, **parameters)[0]) for source in sources]
    for source, answer in asked:
        answer.finish(n)
        for index in range(n):
            deltas = [delta for delta in answer.deltas if delta.index == index]
            assert all(delta.alignment is None for delta in deltas[:-1])
            found = deltas[-1].alignment
            tokens = answer.tokens(index)
            assert list(found.source_ids) == source
            assert list(found.token_ids) == tokens
            read = [engine.model.decoder_start_token_id, *begin, *tokens[:-1]]
            with torch.no_grad():
                out = reference(
                    input_ids=torch.tensor([source]),
                    decoder_input_ids=torch.tensor([read]),
                    output_attentions=True,
                )
            wanted = out.cross_attentions[-1][0].mean(0).numpy()[len(begin) :]
            np.testing.assert_allclose(found.weights, wanted, 0, PIPELINE_SCORE)
    assert engine.cache.used == 0


def test_nobody_else_has_one(model):
    _, engine = model
    for parameters in ({}, {"num_beams": 3}):
        answer = ask(engine, [20] * 5, max_new_tokens=5, **parameters)[0].finish()
        assert all(delta.alignment is None for delta in answer.deltas)


@pytest.mark.parametrize("beams", [1, 3])
def test_an_alignment_that_fails_ends_its_request_alone(model, monkeypatch, beams):
    _, engine = model
    other = ask(engine, [20] * 5, max_new_tokens=30, min_new_tokens=30)[0]
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "alignments", lambda *_: 1 / 0)
        with pytest.raises(ComputeFailed):
            ask(engine, [30] * 5, max_new_tokens=4, num_beams=beams, alignment=True)[0].finish()
    assert len(other.finish().tokens()) == 30
    assert engine.cache.used == 0


def test_passes_have_no_more_tokens_than_steps(model, monkeypatch):
    _, engine = model
    given, alignments = [], engine.model.alignments

    def noted(source_ids, targets, max_batch_tokens):
        given.append((len(targets), max_batch_tokens))
        return alignments(source_ids, targets, max_batch_tokens)

    monkeypatch.setattr(engine.model, "alignments", noted)
    ask(engine, [30] * 5, max_new_tokens=4, num_beams=3, n=2, alignment=True)[0].finish(2)
    assert given == [(2, engine.settings.max_batch_tokens)]


@pytest.mark.parametrize("beams", [1, 3])
def test_what_it_takes_is_no_cost_of_a_step(model, monkeypatch, beams):
    _, engine = model
    alignments, observe, took_s = engine.model.alignments, engine._loop.costs.observe, []
    slept_s = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + slept_s[0])
    monkeypatch.setattr(aligner, "time", clock)
    monkeypatch.setattr(generation_loop, "time", clock)

    def slow(*asked):
        slept_s[0] += 1000  # more than any step takes
        return alignments(*asked)

    def noted(tokens, squares, seconds):
        took_s.append(seconds)
        observe(tokens, squares, seconds)

    monkeypatch.setattr(engine.model, "alignments", slow)
    monkeypatch.setattr(engine._loop.costs, "observe", noted)
    ask(engine, [30] * 5, max_new_tokens=4, num_beams=beams, alignment=True)[0].finish()
    between_steps(engine, lambda: None)
    assert len(took_s) >= 4
    assert 0 < min(took_s) <= max(took_s) < 1000


@pytest.mark.parametrize(
    ("weights", "tokens", "message"),
    [
        (75, None, "16 tokens with a source of 5, wanted at most 75 weights.* lower max_tokens or"),
        (80, 15, r"16 tokens with .* wanted at most 15 \(max_batch_tokens\).* lower max_tokens"),
        (80, 16, None),
    ],
)
def test_an_alignment_that_could_be_too_large_is_refused(
    model, monkeypatch, weights, tokens, message
):
    _, engine = model
    monkeypatch.setattr("fusewire.engine.request_preparation._MOST_WEIGHTS", weights)
    if tokens is not None:
        monkeypatch.setattr(engine._preparation, "_max_batch_tokens", tokens)
    asked = {"max_tokens": 16, "min_new_tokens": 16}
    if message is None:
        found = ask(engine, [30] * 5, **asked, alignment=True)[0].finish().deltas[-1].alignment
        assert found.weights.shape == (16, 5)
        return
    with pytest.raises(InvalidInput, match=f"alignment: got true for texts of up to {message}"):
        ask(engine, [30] * 5, **asked, alignment=True)
    assert engine._admission._taken == 0
    ask(engine, [30] * 5, **asked)[0].finish()


def test_a_model_without_an_encoder_has_none(tmp_path):
    wanted = pytest.raises(InvalidInput, match="alignment: got true, wanted false for a model")
    with tiny_engine(tmp_path) as engine, wanted:
        ask(engine, "x", alignment=True)
