"""A beginning that a request gives is gone on from as transformers goes on from
`decoder_input_ids`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import InvalidInput

from tests.engine.generating import ask, tiny_engine
from tests.engine.test_beam_search import VOCABULARY, drawn, engine_of, loaded, random_prompt
from tests.engine.test_seq2seq_generation import ENDS, LONGEST
from tests.tolerance import PIPELINE_SCORE

STARTS = {"bart": 2, "t5": 0, "marian": 1}
BOS = 7  # forced in the folder of BART


@pytest.fixture(scope="module", params=["bart", "t5", "marian"])
def model(request, tmp_path_factory) -> Iterator[tuple[Any, GenerationEngine, int | None]]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    bos = BOS if request.param == "bart" else None
    reference = loaded(folder, request.param, **({} if bos is None else {"forced_bos_token_id": 7}))
    with engine_of(folder) as engine:
        yield reference.model, engine, bos


def reference_of(model: Any, source: list[int], begin: list[int], **options: Any) -> Any:
    """What transformers generates; the tokens behind the beginning, in `sequences`."""
    with torch.no_grad():
        return model.generate(
            torch.tensor([source]),
            decoder_input_ids=torch.tensor([begin]),
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            eos_token_id=ENDS,
            pad_token_id=1,
            **options,
        )


OPTIONS = [
    {},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 9},
    {"begin_suppress_tokens": [*range(4, 60)]},
    {"forced_eos_token_id": 9, "min_new_tokens": 9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_answers_go_on_as_those_of_transformers(model, options):
    """With beams and without, from one token or many."""
    reference, engine, _ = model
    start, chosen = engine.model.decoder_start_token_id, random.Random(3)
    asked = []
    for turn in range(8):
        source, prefix = random_prompt(chosen, 40), random_prompt(chosen, 30)
        given = [start, *prefix] if turn % 2 else prefix
        beams = {"num_beams": 1} if turn < 3 else drawn(chosen)
        search = {**beams, "max_new_tokens": 12, **options}
        answer, _ = ask(engine, source, decoder_input_ids=given, **search)
        asked.append((source, [start, *prefix], search, answer))
    for source, begin, search, answer in asked:
        n = search.get("n", 1)
        answer.finish(n)
        search = {("num_return_sequences" if k == "n" else k): v for k, v in search.items()}
        wanted = reference_of(reference, source, begin, **search)
        for index, row in enumerate(wanted.sequences[:, len(begin) :].tolist()):
            tokens = answer.tokens(index)
            assert tokens == row[: len(tokens)]
            assert {*row[len(tokens) :]} <= {1}
            if search["num_beams"] > 1:
                last = [delta for delta in answer.deltas if delta.index == index][-1]
                score = wanted.sequences_scores[index].item()
                assert last.score == pytest.approx(score, PIPELINE_SCORE, PIPELINE_SCORE)


@pytest.mark.parametrize("beams", [1, 3])
def test_the_text_begins_with_the_prefix_which_nothing_else_counts(model, beams):
    _, engine, bos = model
    source, prefix = random_prompt(random.Random(5), 20), "Half!a!leg"
    ids = engine.tokenizer.backend.encode(prefix).ids
    begin = ids if bos is None else [bos, *ids]
    options = {"num_beams": beams, "max_new_tokens": 9}
    answer, _ = ask(engine, source, target_prefix=prefix, **options)
    same, _ = ask(engine, source, decoder_input_ids=begin, **options)
    assert answer.finish().tokens() == same.finish().tokens()
    shown = [token for token in answer.tokens() if token not in ENDS]
    assert answer.text() == engine.tokenizer.decode([*begin, *shown])
    assert prefix in answer.text()
    last = answer.deltas[-1]
    assert last.num_output_tokens == len(answer.tokens()) <= 9
    assert last.cumulative_logprob == pytest.approx(sum(d.logprob for d in answer.deltas))


def test_every_text_of_a_request_begins_so(model):
    _, engine, _ = model
    options = {"temperature": 20.0, "seed": 3, "max_new_tokens": 6, "target_prefix": "Half"}
    answer = ask(engine, [20] * 5, n=3, **options)[0].finish(3)
    assert all("Half" in answer.text(index) for index in range(3))
    assert len({tuple(answer.tokens(index)) for index in range(3)}) == 3


def test_a_forced_beginning_is_forced_behind_the_start_alone(model):
    _, engine, bos = model
    start = engine.model.decoder_start_token_id
    free = ask(engine, [20] * 5, max_new_tokens=4)[0].finish().tokens()
    same = ask(engine, [20] * 5, max_new_tokens=4, decoder_input_ids=[start])[0].finish().tokens()
    assert free == same
    assert bos is None or free[0] == bos


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"decoder_input_ids": [VOCABULARY]}, r"decoder_input_ids: got id 131, wanted ids 0\.\."),
        ({"decoder_input_ids": [-1]}, "decoder_input_ids: got id -1"),
        ({"decoder_input_ids": [5.5]}, "decoder_input_ids: got"),
        ({"target_prefix": 5}, "target_prefix: got 5, wanted a string;"),
        (
            {"target_prefix": "a", "decoder_input_ids": [5]},
            "target_prefix: got a, wanted null beside decoder_input_ids",
        ),
        (
            {"decoder_input_ids": [20] * LONGEST},
            "decoder_input_ids: got 65 tokens that the decoder begins with, wanted at most 63",
        ),
        (
            {"decoder_input_ids": [20] * 10, "max_tokens": 54},
            "max_tokens: got 54, wanted at most 53, the context length of 64 less the 11 tokens",
        ),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused(model, parameters, message):
    _, engine, _ = model
    with pytest.raises(InvalidInput, match=message):
        ask(engine, [20] * 5, **parameters)
    assert engine.cache.used == 0


def test_a_decoder_goes_on_from_its_prompt(tmp_path):
    with tiny_engine(tmp_path) as engine:
        for name, value in (("target_prefix", "a"), ("decoder_input_ids", [5])):
            with pytest.raises(InvalidInput, match=f"{name}: got .* for a model without an enc"):
                ask(engine, "x", **{name: value})
