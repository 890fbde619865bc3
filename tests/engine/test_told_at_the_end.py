"""What a request is told when a text has ended is what it would have been told token by token."""

from __future__ import annotations

import queue
import random

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import Cancelled
from fusewire.generation.request import GenerationRequest

from tests.engine.generating import (
    ANSWER_TIMEOUT_S,
    Answer,
    ShortOfPages,
    ask,
    between_steps,
    held,
    pass_steps,
    tiny_folder,
)

SIZES = {"max_sequences": 16, "max_batch_tokens": 24, "max_waiting": 2000}
KINDS = ("text", "ids")


@pytest.fixture(scope="module", params=[GenerationEngine, ShortOfPages])
def engine(request, tmp_path_factory):
    folder = tiny_folder(tmp_path_factory.mktemp("model"))
    with request.param(folder, GenerationSettings(**SIZES)) as engine:
        yield engine


def asked(rng: random.Random) -> dict[str, object]:
    wishes: dict[str, object] = {"max_new_tokens": rng.randint(1, 40)}
    if rng.random() < 0.5:
        wishes |= {"temperature": 1.2, "seed": rng.randint(0, 99), "n": rng.randint(1, 3)}
        wishes |= rng.choice([{}, {"repetition_penalty": 1.2}, {"best_of": 3}])
    elif rng.random() < 0.3:
        wishes |= {"num_beams": 3, "n": rng.randint(1, 3)}
    if rng.random() < 0.3:
        wishes["stop_token_ids"] = [rng.randint(0, 255) for _ in range(20)]
    if "num_beams" not in wishes:
        wishes |= rng.choice([{}, {}, {}, {"stop": ["a", "é"]}, {"logprobs": 2}])
    return wishes


def at_the_end(engine: GenerationEngine, prompt: list[int], tells: str, **wishes: object) -> Answer:
    parameters = engine.parameters(**wishes)
    answer = Answer(parameters)
    request = GenerationRequest(prompt, parameters, tells=tells)  # type: ignore[arg-type]
    engine.submit(request, None, answer.events.put)
    return answer


def summary(answer: Answer, index: int) -> tuple[object, ...]:
    deltas = [delta for delta in answer.deltas if delta.index == index]
    last = deltas[-1]
    tokens = [token for delta in deltas for token in delta.token_ids]
    return tokens, last.finish_reason, last.num_output_tokens, last.cumulative_logprob, last.score


def test_it_is_the_same_at_once(engine):
    rng = random.Random(7)
    cases = []
    for _ in range(120):
        prompt = [rng.randint(0, 255) for _ in range(rng.randint(1, 30))]
        wishes = asked(rng)
        streamed, _ = ask(engine, prompt, **wishes)
        cases.append((wishes, streamed, *(at_the_end(engine, prompt, t, **wishes) for t in KINDS)))
        pass_steps(engine, rng.randrange(3))
    for wishes, streamed, text, ids in cases:
        count = wishes.get("n", 1)
        for answer in (streamed, text, ids):
            answer.finish(count)
        quiet = not wishes.keys() & {"stop", "logprobs"}
        for index in range(count):
            assert summary(text, index) == summary(ids, index) == summary(streamed, index)
            assert text.text(index) == streamed.text(index)
            if quiet:
                assert ids.text(index) == ""
        assert not quiet or len(text.deltas) == len(ids.deltas) == count
    assert between_steps(engine, lambda: engine.cache.used) == 0


def test_a_request_that_is_cancelled_has_told_nothing_but_counts(engine):
    events: queue.SimpleQueue = queue.SimpleQueue()
    parameters = engine.parameters(max_new_tokens=100, ignore_eos=True)
    with held(engine):
        request = GenerationRequest([1, 2, 3], parameters, tells="text")
        ticket = engine.submit(request, None, events.put)
    while ticket.num_output_tokens() < 5:
        pass_steps(engine, 1)
    ticket.cancel()
    assert isinstance(events.get(timeout=ANSWER_TIMEOUT_S), Cancelled)
    assert events.empty()
    assert 5 <= ticket.num_output_tokens() < 100


@pytest.mark.parametrize(
    "wishes", [{}, {"stop_token_ids": [7, 9]}, {"temperature": 1.1, "seed": 3}]
)
def test_who_asks_is_told_what_came_since(engine, wishes):
    prompt, wishes = [5, 6, 7, 8], {"max_new_tokens": 30, **wishes}
    streamed, _ = ask(engine, prompt, **wishes)
    parameters = engine.parameters(**wishes)
    answer = Answer(parameters)
    with held(engine):
        request = GenerationRequest(prompt, parameters, tells="asked")
        ticket = engine.submit(request, None, answer.events.put)
    pass_steps(engine, 8)
    told = 1  # the first token, without being asked
    rng = random.Random(1)
    while answer.events.qsize() == told and ticket.num_output_tokens() < 24:
        ticket.ask()
        pass_steps(engine, rng.randrange(2, 6))
        told += 1
    answer.finish(1)
    streamed.finish(1)
    assert summary(answer, 0) == summary(streamed, 0)
    assert answer.text(0) == streamed.text(0)
    assert len(answer.deltas) in (told, told + 1)  # with the last, nobody asking
    assert len(answer.deltas[0].token_ids) == 1
    assert told < 3 or max(len(delta.token_ids) for delta in answer.deltas) > 1


def test_a_request_that_asks_no_more_is_told_its_end(engine):
    answer = at_the_end(engine, [1, 2, 3], "asked", max_new_tokens=20, ignore_eos=True)
    answer.finish(1)
    first, last = answer.deltas
    assert (len(first.token_ids), len(last.token_ids)) == (1, 19)
    assert last.finish_reason == "length"
