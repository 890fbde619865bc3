"""Whatever is asked: an answer that obeys it or the error for it, and nobody else notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_loop import FORBIDDEN
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import FusewireError, InvalidInput
from fusewire.generation.request import GenerationRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.any_request import COUPLED, Asked, any_request, obeys
from tests.engine.generating import Answer, ShortOfPages, ask, is_greedy, tiny_folder

PROMPTS = [(7, 70), (1, 2, 3, 4, 5, 6, 7, 8, 9), (200,)]  # of others


@pytest.fixture(scope="module", params=[GenerationEngine, ShortOfPages])
def engine(request, tmp_path_factory) -> Iterator[GenerationEngine]:
    sizes = GenerationSettings(max_batch_tokens=24, max_sequences=8, max_waiting=1000)
    with request.param(tiny_folder(tmp_path_factory.mktemp("gpt2")), sizes) as engine:
        yield engine


@cache
def alone(engine: GenerationEngine, prompt: tuple[int, ...]) -> list[int]:
    tokens = ask(engine, prompt, max_new_tokens=30)[0].finish().tokens()
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


@settings(deadline=None, max_examples=25)
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
                assert first.field in each.wrong | COUPLED, first
            else:
                assert each.may_be_refused(), first
            continue
        assert not each.wrong, each
        ends = [finished(first), finished(again)]
        if isinstance(ends[0], InvalidInput):
            assert str(ends[0]) == str(InvalidInput(*FORBIDDEN))
            assert each.forbids()
            continue
        obeys(engine, each.prompt, first.parameters, first)
        if first.parameters.greedy or first.parameters.seed is not None:
            assert ends[0] == ends[1]
    for prompt, other in others.items():
        assert other.finish().tokens() == wanted[prompt]
    assert engine.cache.used == 0
    assert engine.counts().running == engine.counts().waiting == 0
