"""A step that is begun before the tokens of the one before it are read changes no answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.generation_step import Step
from fusewire.errors import ComputeFailed
from fusewire.generation.request import GenerationRequest
from fusewire.models import Seq2SeqModel
from fusewire.models.step_batch import StepBatch

from tests.engine.generating import (
    LONGEST,
    Answer,
    Cancelling,
    ShortOfPages,
    ask,
    between_steps,
    first_row_nan,
    held,
    pass_steps,
    spoiled,
    tiny_folder,
)
from tests.engine.test_seq2seq_generation import WORDS, random_sources, seq2seq_folder
from tests.places import CPU, GPU_FP32

# Every kind of parameters that a step ahead goes on with or ends by, and of those it waits for.
GOES_ON: tuple[dict[str, object], ...] = (
    {},
    {"max_new_tokens": 1},
    {"ignore_eos": True},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.5, "top_p": 0.9, "seed": 6, "logprobs": 0},
    {"logprobs": 2},
    {"temperature": 1.1, "top_k": 20, "seed": 7, "n": 2},
    {"stop": ["e", "\x00"]},
    {"stop_token_ids": list(range(0, WORDS, 9))},
    {"bad_words_ids": [[5], [6]], "logit_bias": {7: 2.5}, "ignore_eos": True},
    {"min_new_tokens": 9, "max_new_tokens": 30, "stop_token_ids": list(range(0, WORDS, 2))},
    {"begin_suppress_tokens": list(range(0, WORDS, 2)), "temperature": 1.3, "seed": 8},
    {"suppress_tokens": list(range(0, WORDS, 3)), "min_new_tokens": 4, "max_new_tokens": 20},
)
WAITS: tuple[dict[str, object], ...] = (
    {"bad_words_ids": [[5, 6], [7]]},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"num_beams": 2},
)


class Both(ShortOfPages):
    """An engine that says how many of its steps were begun ahead."""

    def __init__(self, *arguments: object, **given: object) -> None:
        super().__init__(*arguments, **given)  # type: ignore[arg-type]
        self.ahead = 0
        if (look_ahead := self._loop._look_ahead) is not None:
            begin = look_ahead.begin

            def counted(*of_step: object) -> object:
                step = begin(*of_step)  # type: ignore[arg-type]
                self.ahead += not step.empty
                return step

            look_ahead.begin = counted  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module", params=["gpt2", "bart", "marian"])
def folder(request, tmp_path_factory):
    """BART forces the first token and the last; so Marian the last one, and bans the padding."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gpt2":
        return tiny_folder(folder)
    own = {"forced_bos_token_id": 7} if request.param == "bart" else {"bad_words_ids": [[1]]}
    seq2seq_folder(folder, request.param, forced_eos_token_id=2, **own)
    return folder


def pair(folder, place=None) -> list[Both]:
    device = "cpu" if place is None else place.device
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=8, dtype="float32")
    return [Both(folder, settings, device, look_ahead=ahead) for ahead in (False, True)]


@pytest.fixture
def engines(folder, request) -> Iterator[list[Both]]:
    """One that reads the tokens of every step before the next, and one that looks ahead."""
    both = pair(folder, getattr(request, "param", None))
    yield both
    for engine in both:
        engine.close()


def answered(
    engine: GenerationEngine, seed: int, kinds: Sequence[dict[str, object]]
) -> list[list[object]]:
    """What 60 requests of these kinds are told that come at any time; all get 1 to 50 tokens."""
    chosen, asked = random.Random(seed), []
    encodes = isinstance(engine.model, Seq2SeqModel)
    longest = engine.settings.max_batch_tokens if encodes else LONGEST - 60
    for prompt in random_sources(60, seed, longest):
        parameters = {"max_new_tokens": chosen.randint(1, 50), **chosen.choice(kinds)}
        asked.append((parameters.get("n", 1), ask(engine, prompt, **parameters)[0]))
        pass_steps(engine, chosen.choice((0, 0, 0, 24)))
    return [told(answer.finish(count)) for count, answer in asked]


def forces_first(engine: Both) -> bool:
    """The step behind the first token of each waits for it."""
    return engine.parameters().forced_bos_token_id is not None


def told(answer: Answer) -> list[object]:
    """Of continuations in their order; which step tells what is not part of it."""
    deltas = sorted(answer.deltas, key=lambda delta: delta.index)
    return [
        (each.index, each.token, each.text, each.logprob, each.finish_reason, each.top_logprobs)
        for each in deltas
    ]


@pytest.mark.parametrize(
    ("kinds", "begun"), [(GOES_ON, 50), ((*GOES_ON, *WAITS), 5)], ids=["alike", "any"]
)
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_an_engine_that_reads_every_step_first(engines, seed, kinds, begun):
    first, ahead = engines
    assert answered(ahead, seed, kinds) == answered(first, seed, kinds)
    assert first.ahead == 0
    assert ahead.ahead >= begun
    assert between_steps(ahead, lambda: ahead.cache.used) == between_steps(
        first, lambda: first.cache.used
    )


@pytest.mark.parametrize("engines", [CPU, GPU_FP32], indirect=True)
def test_most_steps_of_sequences_that_go_on_together_are_begun_ahead(engines):
    tokens = []
    for engine in engines:
        with held(engine):
            asked = [ask(engine, [i + 1], max_new_tokens=40, ignore_eos=True) for i in range(2)]
        tokens.append([answer.finish().tokens() for answer, _ in asked])
    assert tokens[0] == tokens[1]
    # All but the prompts' step.
    assert engines[1].ahead == 39 - forces_first(engines[1])


@pytest.mark.parametrize("tells", ["tokens", "ids"])
@pytest.mark.parametrize("engines", [CPU, GPU_FP32], indirect=True)
def test_those_that_go_on_wait_for_none_that_end_by_their_length(engines, tells):
    tokens = []
    for engine in engines:
        with held(engine):
            answers = []
            for length in (10, 20, 30, 40):
                asked = engine.parameters(max_new_tokens=length, ignore_eos=True)
                answers.append(Answer(asked))
                request = GenerationRequest([length], asked, tells=tells)
                engine.submit(request, None, answers[-1].events.put)
        tokens.append(
            [[t for each in answer.finish().deltas for t in each.token_ids] for answer in answers]
        )
    assert tokens[0] == tokens[1]
    assert [len(each) for each in tokens[1]] == [10, 20, 30, 40]
    # A token that is forced is waited for: each time all wait for one step more.
    forced = 3 if isinstance(engines[1].model, Seq2SeqModel) else 0
    assert engines[1].ahead == 39 - forced - forces_first(engines[1])


@pytest.mark.parametrize("engines", [CPU, GPU_FP32], indirect=True)
def test_those_that_go_on_wait_for_none_that_end_by_a_token(engines):
    first, ahead = engines
    whole = ask(first, [1], max_new_tokens=40, ignore_eos=True)[0].finish().tokens()
    stop = next(token for place, token in enumerate(whole[6:], 6) if token not in whole[:place])
    asked = {"max_new_tokens": 40, "ignore_eos": True}
    for engine in engines:
        with held(engine):
            short = ask(engine, [1], stop_token_ids=[stop], **asked)[0]
            long = ask(engine, [2], **asked)[0]
        assert short.finish().tokens() == whole[: whole.index(stop) + 1]
        assert len(long.finish().tokens()) == 40
    assert ahead.ahead == 39 - forces_first(ahead)


def noted_plans(engine: Both, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps that the engine plans when it has read all tokens."""
    found: list[Step] = []
    plan = engine._loop.scheduler.plan

    def noted(now: float) -> Step:
        step = plan(now)
        if not step.empty:
            found.append(step)
        return step

    monkeypatch.setattr(engine._loop.scheduler, "plan", noted)
    return found


@pytest.mark.parametrize("engines", [CPU, GPU_FP32], indirect=True)
def test_nobody_waits_for_one_that_joins(engines, monkeypatch):
    """Its prompt, in chunks where it is long, is computed in steps that are begun ahead. One with a
    source, which is encoded first, makes all wait once."""
    tokens, planned = [], noted_plans(engines[1], monkeypatch)
    for engine in engines:
        asked = [ask(engine, [1], max_new_tokens=90, ignore_eos=True)[0]]
        asked[0].next()
        encodes = isinstance(engine.model, Seq2SeqModel)
        for length in (1, 20, 23 if encodes else 70):
            pass_steps(engine, 4)
            asked.append(ask(engine, [5] * length, max_new_tokens=20, ignore_eos=True)[0])
            asked[-1].next()
        tokens.append([answer.finish().tokens() for answer in asked])
    assert tokens[0] == tokens[1]
    assert len(planned) >= 4 if encodes else len(planned) == 1


@pytest.mark.parametrize(
    "apart",
    [{"n": 2, "temperature": 1.0, "seed": 3}, {"prompt_logprobs": 0}, {"num_beams": 2}],
    ids=["forks", "scored", "beams"],
)
def test_one_that_is_not_plain_makes_all_wait(tmp_path, monkeypatch, apart):
    tokens, both = [], pair(tiny_folder(tmp_path))
    planned = noted_plans(both[1], monkeypatch)
    for engine in both:
        first = ask(engine, [1], max_new_tokens=60, ignore_eos=True)[0]
        first.next()
        pass_steps(engine, 4)
        asked = {"max_new_tokens": 8, "ignore_eos": True, **apart}
        other = ask(engine, [2, 3, 4], **asked)[0].finish(apart.get("n", 1))
        tokens.append([told(first.finish()), told(other)])
        engine.close()
    assert tokens[0] == tokens[1]
    assert sum(bool(step.begun) for step in planned) == 2


def test_nothing_is_read_of_a_step_while_it_is_begun(tmp_path, monkeypatch):
    """Not even the likeliest tokens of one whose prompt it completes: the tokens of the step before
    would come no sooner than those."""
    with pair(tiny_folder(tmp_path))[1] as engine:
        place, look_ahead = engine.model.place, engine._loop._look_ahead
        read, begin, beginning, early = place.numpy, look_ahead.begin, [], []

        def noted(tensor):
            early.extend(beginning)
            return read(tensor)

        def begun(*of_step):
            beginning.append(of_step)
            step = begin(*of_step)
            beginning.clear()
            return step

        monkeypatch.setattr(place, "numpy", noted)
        monkeypatch.setattr(look_ahead, "begin", begun)
        first = ask(engine, [1], max_new_tokens=60, ignore_eos=True)[0]
        first.next()
        other = ask(engine, [2, 3], max_new_tokens=4, ignore_eos=True, logprobs=3)[0].finish()
        assert [len(delta.top_logprobs) for delta in other.deltas] == [3] * 4
        first.finish()
    assert not early


def test_sequences_at_their_maximum_length_waste_no_row_and_free_their_slot_at_once(
    tmp_path,
):
    tiny_folder(tmp_path)
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=2, dtype="float32")
    computed = []
    for look_ahead in (False, True):
        with Both(tmp_path, settings, "cpu", look_ahead=look_ahead) as engine:
            steps, step = [], engine.model.step

            def run(batch, cache, steps=steps, step=step):
                steps.append(batch.tokens)
                return step(batch, cache)

            engine.model.step = run
            with held(engine):
                asked = [
                    ask(engine, [i + 1, 2], max_new_tokens=most, ignore_eos=True)[0]
                    for i, most in enumerate((5, 30, 1, 4, 2))
                ]
            assert [len(answer.finish().tokens()) for answer in asked] == [5, 30, 1, 4, 2]
            computed.append(steps)
    assert computed[0] == computed[1]


def test_sequences_that_run_out_of_pages_are_answered_as_without(engines):
    tokens = []
    for engine in engines:
        with held(engine):
            asked = [ask(engine, [i + 1], max_new_tokens=90, ignore_eos=True) for i in range(8)]
        tokens.append([answer.finish().tokens() for answer, _ in asked])
    assert tokens[0] == tokens[1]
    assert engines[1].counts().preemptions > 0
    assert engines[1].ahead > 50


def test_a_request_that_is_cancelled_ends_while_its_next_step_is_under_way(engines):
    for engine in engines:
        cancelling = Cancelling(engine)
        cancelled, _ = cancelling.ask(10, [1, 2, 3], max_new_tokens=25, ignore_eos=True)
        other, _ = ask(engine, [4, 5], max_new_tokens=25, ignore_eos=True)
        assert len(cancelled.finish().tokens()) == 10
        assert cancelled.cancelled
        assert len(other.finish().tokens()) == 25
        assert between_steps(engine, lambda engine=engine: engine.counts().live_tokens) == 0


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_are_cancelled_at_any_time_change_no_other_answer(engines, seed):
    """Also while the step that begins them, or completes their prompts, is under way."""
    found = []
    for engine in engines:
        chosen, kept, cancelled = random.Random(seed), [], []
        for prompt in random_sources(40, seed, 20):
            asked = {"max_new_tokens": chosen.randint(1, 30), **chosen.choice(GOES_ON)}
            answer, ticket = ask(engine, prompt, **asked)
            if chosen.random() < 0.5:
                kept.append((asked.get("n", 1), answer))
            else:
                cancelled.append(ticket)
            pass_steps(engine, chosen.choice((0, 1, 1, 2)))
            if cancelled and chosen.random() < 0.7:
                cancelled.pop().cancel()
        for ticket in cancelled:
            ticket.cancel()
        found.append([told(answer.finish(count)) for count, answer in kept])
        assert between_steps(engine, lambda engine=engine: engine.counts().live_tokens) == 0
    assert found[0] == found[1]


@contextmanager
def failing(engine: GenerationEngine, fails: Callable[[int, StepBatch], bool]) -> Iterator[None]:
    """Steps of the model raise where it `fails`, asked with their number, from 1 on."""
    steps, step = count(1), engine.model.step

    def run(batch, cache):
        if fails(next(steps), batch):
            raise RuntimeError("no room")
        return step(batch, cache)

    engine.model.step = run
    yield
    engine.model.step = step


def test_a_step_that_could_not_be_begun_is_computed_behind_the_tokens_before_it(engines, caplog):
    """Which is said, and so is each of the next ones."""
    found = []
    for engine in engines:
        with failing(engine, lambda number, batch: number > 4 and batch.sampled is not None):
            asked = [ask(engine, [i + 1], max_new_tokens=20, ignore_eos=True)[0] for i in range(2)]
            found.append([told(answer.finish()) for answer in asked])
        assert between_steps(engine, lambda engine=engine: engine.counts().live_tokens) == 0
    assert found[0] == found[1]
    (warning,) = (each for each in caplog.records if each.name == "fusewire.engine.look_ahead")
    assert "got RuntimeError: no room; it is computed behind them" in warning.message
    assert warning.levelname == "WARNING"
    before = engines[1].ahead
    assert ask(engines[1], [7], max_new_tokens=9)[0].finish().tokens()
    assert engines[1].ahead == before


def test_who_begins_in_a_step_that_could_not_be_begun_has_waited_no_less(tmp_path):
    _, engine = pair(tiny_folder(tmp_path))
    with engine, failing(engine, lambda _, batch: batch.sampled is not None and not batch.rows):
        first = ask(engine, [1], max_new_tokens=40, ignore_eos=True)[0]
        first.next()
        ask(engine, [2, 3], max_new_tokens=5, ignore_eos=True)[0].finish()
        first.finish()
        waited = engine.take_queue_seconds()
    assert len(waited) == 2
    assert min(waited) >= 0


def test_a_step_that_fails_again_behind_the_tokens_before_it_ends_its_requests(engines):
    _, engine = engines
    with failing(engine, lambda number, batch: number >= 5):
        answer, _ = ask(engine, [7], max_new_tokens=20, ignore_eos=True)
        with pytest.raises(ComputeFailed, match="RuntimeError"):
            answer.finish()
        assert len(answer.tokens()) == 4
    assert len(ask(engine, [7], max_new_tokens=9, ignore_eos=True)[0].finish().tokens()) == 9


def test_who_waits_for_pages_beside_a_free_slot_keeps_no_step_from_being_begun_ahead(tmp_path):
    tokens = []
    for engine in (both := pair(tiny_folder(tmp_path))):
        with held(engine):
            asked = [
                ask(engine, [i + 1] * length, max_new_tokens=30, ignore_eos=True)[0]
                for i, length in enumerate((60, 70, 80, 90))
            ]
        tokens.append([answer.finish().tokens() for answer in asked])
        assert engine.counts().preemptions == 0
        engine.close()
    assert tokens[0] == tokens[1]
    # The last one waits for pages until another has ended: 28 steps are begun while it runs alone.
    assert both[1].ahead >= 28 + 20


def test_a_source_that_waits_for_budget_keeps_no_step_from_being_begun_ahead(tmp_path):
    seq2seq_folder(tmp_path, "bart", forced_eos_token_id=2)
    tokens = []
    for engine in (both := pair(tmp_path)):
        longest = engine.settings.max_batch_tokens
        with held(engine):
            asked = [
                ask(engine, [i + 3] * length, max_new_tokens=40, ignore_eos=True)[0]
                for i, length in enumerate((5, 6, longest))
            ]
        tokens.append([answer.finish().tokens() for answer in asked])
        engine.close()
    assert tokens[0] == tokens[1]
    assert both[1].ahead >= 38 + 38


def test_a_row_without_a_token_ends_its_request_and_no_other(engines):
    """Its next step has been begun by then, from an id that no vocabulary has."""
    found = []
    for engine in engines:
        good = ask(engine, [5, 6], max_new_tokens=20, ignore_eos=True)[0].finish()
        with spoiled(engine, first_row_nan, at=4):
            with held(engine):
                bad = ask(engine, [9], max_new_tokens=20, ignore_eos=True)[0]
                other = ask(engine, [5, 6], max_new_tokens=20, ignore_eos=True)[0]
            with pytest.raises(ComputeFailed, match="NaN"):
                bad.finish()
            assert len(bad.tokens()) == 3
            assert other.finish().tokens() == good.tokens()
        found.append(told(other))
    assert found[0] == found[1]
