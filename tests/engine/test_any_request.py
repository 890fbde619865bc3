"""Whatever is asked: an answer that obeys it or the error for it, and nobody else notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_errors import FORBIDDEN
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import FusewireError, InvalidInput
from fusewire.generation.request import GenerationRequest
from fusewire.models.seq2seq_model import Seq2SeqModel
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.any_request import Asked, any_request, obeys
from tests.engine.generating import (
    END,
    LONGEST,
    Answer,
    ShortOfPages,
    ask,
    byte_tokenizer,
    is_greedy,
    tiny_folder,
)
from tests.models.tiny_seq2seq import tiny_seq2seq

PROMPTS = [(7, 70), (1, 2, 3, 4, 5, 6, 7, 8, 9), (200,)]  # of others


def seq2seq_folder(folder: Path) -> Path:
    model = tiny_seq2seq(folder, "bart", vocab_size=END + 1)
    model.generation_config.update(eos_token_id=END, forced_bos_token_id=None)
    model.generation_config.save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        (GenerationEngine, tiny_folder, 24, True),
        (ShortOfPages, tiny_folder, 24, True),
        (GenerationEngine, seq2seq_folder, LONGEST // 2, False),
        (ShortOfPages, seq2seq_folder, LONGEST // 2, True),
    ],
    ids=["gpt2 ahead", "gpt2 short of pages ahead", "bart", "bart short of pages ahead"],
)
def engine(request, tmp_path_factory) -> Iterator[GenerationEngine]:
    """Some look ahead, as engines on GPUs do."""
    kind, folder, tokens, ahead = request.param
    sizes = GenerationSettings(
        max_length=LONGEST, max_batch_tokens=tokens, max_sequences=8, max_waiting=1000
    )
    made = kind(folder(tmp_path_factory.mktemp("model")), sizes, look_ahead=ahead)
    with made as engine:
        yield engine


@cache
def alone(engine: GenerationEngine, prompt: tuple[int, ...]) -> list[int]:
    tokens = ask(engine, prompt, max_new_tokens=30)[0].finish().tokens()
    if not isinstance(engine.model, Seq2SeqModel):
        assert is_greedy(prompt, tokens, 30)
    return tokens


def submitted(engine: GenerationEngine, asked: Asked) -> Answer | FusewireError:
    """What listens to it, or what it was refused with."""
    try:
        parameters = engine.parameters(**asked.parameters)
        answer = Answer(parameters)
        answer.parameters = parameters
        engine.submit(GenerationRequest(asked.prompt, parameters), None, answer.events.put)
    except FusewireError as error:
        return error
    return answer


def finished(answer: Answer) -> list[tuple[list[int], str]] | InvalidInput:
    """Tokens and text of each that came; the error where nothing was left that could come next."""
    try:
        answer.finish(answer.parameters.n)
    except InvalidInput as error:
        return error
    return [(answer.tokens(index), answer.text(index)) for index in range(answer.parameters.n)]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_request_is_answered_as_it_asks_or_refused(engine, seed):
    rng = random.Random(seed)
    asked = [any_request(rng) for _ in range(rng.randint(1, 8))]
    wanted = {prompt: alone(engine, prompt) for prompt in PROMPTS}
    others = {prompt: ask(engine, prompt, max_new_tokens=30)[0] for prompt in PROMPTS}
    answers = [(each, submitted(engine, each), submitted(engine, each)) for each in asked]
    for each, first, again in answers:
        if isinstance(first, FusewireError):
            assert isinstance(first, InvalidInput), first
            assert str(first) == str(again)
            assert ": got " in str(first)
            assert ", wanted " in str(first)
            if each.wrong:
                assert first.field in each.wrong | each.coupled(engine), first
            else:
                assert each.may_be_refused(engine), first
            continue
        assert not each.wrong, each
        ends = [finished(first), finished(again)]
        if isinstance(ends[0], InvalidInput):
            fewer = first.parameters.searches and ends[0].field == "n"  # texts than are wanted
            assert fewer or str(ends[0]) == str(InvalidInput(*FORBIDDEN))
            only_forced = fewer and first.parameters.max_new_tokens == 1  # by the folder
            assert each.forbids() or only_forced
            continue
        obeys(engine, each.prompt, first.parameters, first)
        if first.parameters.greedy or first.parameters.seed is not None:
            assert ends[0] == ends[1]
    for prompt, other in others.items():
        assert other.finish().tokens() == wanted[prompt]
    assert engine.cache.used == 0
    assert engine.counts().running == engine.counts().waiting == 0
