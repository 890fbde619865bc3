"""Requests are taken or refused at once, answered to iterate over, and never left waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from fusewire.engine import generation_thread
from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import (
    Cancelled,
    ComputeFailed,
    ConfigurationError,
    InvalidInput,
    Overloaded,
    QueueFull,
    Unavailable,
)
from fusewire.generation.request import GenerationRequest
from tokenizers import processors

from tests.engine.generating import (
    ANSWER_TIMEOUT_S,
    END,
    LONGEST,
    Answer,
    ask,
    is_greedy,
    tiny_engine,
    tiny_folder,
)
from tests.engine.generating import held as begun_together


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[GenerationEngine]:
    engine = tiny_engine(tmp_path_factory.mktemp("gpt2"))
    yield engine
    engine.close()


def test_an_iterator_gives_the_text_as_it_comes_and_leaving_it_cancels(engine):
    prompt = (7, 70, 170)
    whole = ask(engine, prompt, max_new_tokens=20)[0].finish().text()
    assert "".join(delta.text for delta in engine.generate(prompt, max_new_tokens=20)) == whole
    endless = {"max_new_tokens": LONGEST - len(prompt), "ignore_eos": True}

    def close() -> None:
        pieces = engine.generate(prompt, **endless)
        next(pieces)
        pieces.close()
        assert list(pieces) == []

    def leave() -> None:
        for _ in engine.generate(prompt, **endless):
            break

    def never_begin() -> None:
        engine.generate(prompt, **endless)

    for way in (close, leave, never_begin):
        way()
        ask(engine, [1], max_new_tokens=1)[0].finish()  # behind the cancellation
        assert engine.cache.used == 0


def test_what_comes_together_begins_in_one_step(engine, monkeypatch):
    plans, plan = [], engine._loop.scheduler.plan
    monkeypatch.setattr(
        engine._loop.scheduler, "plan", lambda now: plans.append(plan(now)) or plans[-1]
    )
    with engine.together():
        asked = [ask(engine, [number, 70], max_new_tokens=3)[0] for number in range(8)]
        time.sleep(0.05)  # the engine has nothing to do yet
        assert engine.counts().running == 0
    for answer in asked:
        answer.finish()
    assert [len(step.begun) for step in plans if step.begun] == [8]


def test_what_is_cancelled_before_it_is_handed_over_never_runs(engine):
    with engine.together():
        cancelled, ticket = ask(engine, [7], max_new_tokens=3)
        whole = ask(engine, [7, 70], max_new_tokens=3)[0]
        ticket.cancel()
        with pytest.raises(Cancelled):
            cancelled.next()
    whole.finish()
    assert engine.counts().running == engine.counts().waiting == 0


def test_closing_waits_for_what_comes_together(tmp_path):
    engine = tiny_engine(tmp_path)
    with engine.together():
        answer = ask(engine, [7, 70], max_new_tokens=3)[0]
        closing = threading.Thread(target=engine.close, args=(ANSWER_TIMEOUT_S,))
        closing.start()
        until(lambda: engine._thread._closing)
    answer.finish()
    closing.join()
    with engine.together(), pytest.raises(Unavailable):
        ask(engine, [7, 70], max_new_tokens=3)


def test_what_is_handed_over_behind_the_end_is_cancelled(tmp_path):
    engine = tiny_engine(tmp_path)
    with engine.together():
        answer = ask(engine, [7, 70], max_new_tokens=3)[0]
        closing = threading.Thread(target=engine.close)
        closing.start()
        until(lambda: engine._thread._cancelling)
    with pytest.raises(Cancelled):
        answer.next()
    closing.join()


def test_no_request_waits_for_a_thread_that_has_failed(tmp_path, monkeypatch):
    engine = tiny_engine(tmp_path)

    def fail(now: float) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(engine._loop, "step", fail)
    with engine.together():
        answer = ask(engine, [7, 70], max_new_tokens=3)[0]
        engine._thread._asked.put(lambda: None)  # it takes a step
        until(lambda: not engine._thread._thread.is_alive())
    with pytest.raises(ComputeFailed):
        answer.next()
    engine.close()


@pytest.mark.parametrize(
    "wishes",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"no_repeat_ngram_size": 2, "bad_words_ids": [[7, 70]]},
        {"min_new_tokens": 9, "logit_bias": {END: 50.0, 7: 3.0}},
        {"begin_suppress_tokens": [170, 9]},
        {"stop": ["e", "o"], "logprobs": 2},
        {"temperature": 0.9, "seed": 5, "n": 2},
        {"num_beams": 3, "n": 2, "suppress_tokens": [7]},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    ],
)
def test_requests_that_share_their_parameters_are_answered_as_those_with_their_own(engine, wishes):
    prompts = [[7, 70, 170], [70], [3, 1, 4, 1, 5], [7, 70, 170, 9]]
    parameters = engine.parameters(**wishes, max_new_tokens=24)
    shared = [Answer(parameters) for _ in prompts]
    for prompt, answer in zip(prompts, shared, strict=True):
        engine.submit(GenerationRequest(prompt, parameters), None, answer.events.put)
    for prompt, answer in zip(prompts, shared, strict=True):
        answer.finish(parameters.n)
        own = ask(engine, prompt, **wishes, max_new_tokens=24)[0].finish(parameters.n)
        for index in range(parameters.n):
            assert answer.tokens(index) == own.tokens(index)
            assert answer.text(index) == own.text(index)
            assert answer.finish_reason(index) == own.finish_reason(index)


def test_a_request_that_is_left_takes_part_in_no_step_that_begins_later(engine, monkeypatch):
    begun, may_end = [], threading.Semaphore(0)
    step = engine.model.step

    def watched(batch, cache):
        begun.append(batch.sequences)
        may_end.acquire()
        return step(batch, cache)

    monkeypatch.setattr(engine.model, "step", watched)
    deltas = engine.generate([1, 2, 3], max_new_tokens=100, ignore_eos=True)
    may_end.release()
    next(deltas)
    until(lambda: len(begun) == 2)  # the step that runs
    deltas.close()
    other, _ = ask(engine, [4, 5], max_new_tokens=5, ignore_eos=True)
    may_end.release(6)
    other.finish()
    assert begun == [1] * 7


def test_an_iterator_answers_the_best_of_many_and_raises_what_ends_it(engine):
    prompt, sampled = (7, 70), {"temperature": 1.5, "max_new_tokens": 8, "seed": 1}
    best = ask(engine, prompt, n=2, best_of=6, **sampled)[0].finish(2)
    deltas = engine.generate(prompt, n=2, best_of=6, **sampled)
    assert [(d.index, d.token) for d in deltas] == [(d.index, d.token) for d in best.deltas]
    late = engine.generate(prompt, timeout_seconds=1e-6)
    with pytest.raises(Unavailable, match="timeout: got more work"):
        next(late)
    assert list(late) == []


def test_generate_refuses_at_once_in_words(engine):
    for asked, words in (
        ({"temperature": -1}, "temperature: got -1, wanted at least "),
        ({"max_tokens": "many"}, "max_tokens: got 'many', wanted a whole number; "),
        ({"beams": 2}, "beams: got 2, wanted one of the parameters of generation"),
        ({"max_new_tokens": LONGEST}, f"max_new_tokens: got {LONGEST}, wanted at most"),
    ):
        with pytest.raises(InvalidInput, match=f"^{words}"):
            engine.generate([1, 2], **asked)


def test_a_wrong_setting_is_refused_in_words():
    with pytest.raises(ConfigurationError, match=r"^max_waiting: got 0, wanted greater than or"):
        GenerationSettings(max_waiting=0)
    with pytest.raises(ConfigurationError, match=r"^slots: got an unknown setting, wanted one of"):
        GenerationSettings(slots=2)


def until(true: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < ANSWER_TIMEOUT_S
        time.sleep(0.001)


def test_generate_begins_before_it_is_read(engine):
    before = engine.counts().tokens
    deltas = engine.generate([1, 2, 3], max_new_tokens=1)
    until(lambda: engine.counts().tokens >= before + 3)
    assert len(list(deltas)) == 1


def test_the_folders_generation_config_holds_where_nothing_is_asked(tmp_path):
    folder = tiny_folder(tmp_path)
    config = {"max_new_tokens": 7, "do_sample": True, "temperature": 0.7, "min_new_tokens": 7}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with GenerationEngine(folder) as engine:
        assert engine.parameters().temperature == 0.7
        assert len(list(engine.generate([1, 2]))) == 7
        assert len(list(engine.generate([1, 2], max_new_tokens=3))) == 3
        assert len(list(engine.generate([1] * (LONGEST - 2)))) == 2  # what fits
        greedy = [delta.token for delta in engine.generate([4, 5], temperature=0)]
        assert is_greedy([4, 5], greedy, 7)


def test_a_text_that_has_its_special_tokens_is_given_none(engine, monkeypatch):
    begun = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", END)]
    )
    rendered = "<|endoftext|>Hello"
    length = len(rendered.removeprefix("<|endoftext|>"))
    for asked, added in (({}, 1), ({"add_special_tokens": False}, 0)):
        monkeypatch.setattr(engine.tokenizer.backend, "post_processor", begun)
        for text, ids in (("Hello", length), (rendered, length + 1)):
            answer, ticket = ask(engine, text, max_new_tokens=1, **asked)
            assert ticket.num_input_tokens == ids + added
            answer.finish()
    assert ask(engine, [1, 2], max_new_tokens=1)[1].num_input_tokens == 2


def test_what_cannot_be_served_is_refused_at_once(engine):
    with pytest.raises(InvalidInput, match="text_input: got no tokens"):
        ask(engine, "")
    with pytest.raises(InvalidInput, match=rf"at most {LONGEST - 1}, which leave room"):
        ask(engine, [1] * LONGEST)
    with pytest.raises(InvalidInput, match=r"input_ids: got id 257, wanted ids 0\.\.256"):
        ask(engine, [257])
    with pytest.raises(InvalidInput, match=r"input_ids: got 1\.5 at 0, wanted token ids"):
        ask(engine, [1.5])
    with pytest.raises(InvalidInput, match="text_input: got a text that the tokenizer cannot"):
        ask(engine, "\ud800")
    with pytest.raises(InvalidInput, match="best_of: got 2, wanted at least 3"):
        ask(engine, [1], n=3, best_of=2, temperature=1.0)


def test_a_text_with_a_token_that_the_model_has_not_is_refused_alone(tmp_path):
    with tiny_engine(tmp_path) as engine:
        engine.tokenizer.backend.add_special_tokens(["<pad>"])
        other, _ = ask(engine, [1, 2], max_new_tokens=50)
        with pytest.raises(InvalidInput, match="text_input: got the token '<pad>' with id 257"):
            ask(engine, "a<pad>")
        assert other.finish().tokens()


def test_a_request_that_exceeds_its_timeout_fails(engine):
    answer, _ = ask(engine, [1, 2, 3], max_new_tokens=100, timeout_seconds=1e-6)
    with pytest.raises(Unavailable, match="timeout: got more work"):
        answer.finish()
    assert engine.cache.used == 0


@pytest.fixture
def held(tmp_path, monkeypatch) -> Iterator[tuple[GenerationEngine, threading.Event]]:
    """An engine whose steps begin when the event is set: two run, three wait."""
    go = threading.Event()
    with tiny_engine(tmp_path, max_sequences=2, max_waiting=3) as engine:
        step = engine.model.step
        monkeypatch.setattr(engine.model, "step", lambda *args: go.wait() and step(*args))
        yield engine, go
        go.set()


def test_a_burst_fills_the_free_slots_and_the_queue_and_one_more_is_refused_at_once(held):
    engine, go = held
    answers = [ask(engine, [1, 2, 3], max_new_tokens=5)[0] for _ in range(5)]
    for _ in range(2):
        with pytest.raises(QueueFull, match=r"got 3 .* waiting, wanted fewer than 3; try again"):
            engine.generate([1, 2, 3])
    go.set()
    for answer in answers:
        assert is_greedy([1, 2, 3], answer.finish().tokens(), 5)


def test_what_is_invalid_is_so_however_many_wait_and_what_is_refused_is_not_tokenised(
    held, monkeypatch
):
    engine, go = held
    answers = [ask(engine, [1, 2, 3], max_new_tokens=5)[0] for _ in range(5)]
    with pytest.raises(InvalidInput, match="id 257"):
        ask(engine, [257])
    with pytest.raises(InvalidInput, match="max_new_tokens"):
        ask(engine, [1], max_new_tokens=0)
    read: list[object] = []
    encode = engine.tokenizer.encode

    def reading(*args, **how):
        read.append(args)
        return encode(*args, **how)

    monkeypatch.setattr(engine.tokenizer, "encode", reading)
    with pytest.raises(QueueFull):
        ask(engine, "a text")
    assert not read
    go.set()
    for answer in answers:
        answer.finish()
    ask(engine, "a text", max_new_tokens=1)[0].finish()
    assert read


def test_who_could_not_begin_in_time_is_refused_by_what_steps_cost(held):
    engine, go = held
    go.set()
    engine.measure_costs()
    assert len(engine._admission.times.costs.points) > 1
    assert engine._loop.costs is engine._admission.times.costs
    assert engine.counts().used_pages == 0
    ask(engine, [1, 2, 3], max_new_tokens=5, ignore_eos=True)[0].finish()  # all that it may
    go.clear()
    endless = {"max_new_tokens": 100, "ignore_eos": True, "priority": -1}
    answers = [ask(engine, [1, 2, 3], **endless)[0] for _ in range(3)]
    step_s = engine._admission.times.costs.seconds(2, 0.0)
    with pytest.raises(Overloaded, match="got a predicted wait of"):
        ask(engine, [1], max_new_tokens=1, timeout_seconds=20 * step_s)
    answers.append(ask(engine, [1], max_new_tokens=1, timeout_seconds=1000.0)[0])
    go.set()
    for answer in answers:
        answer.finish()


def test_tenants_without_deadlines_take_turns(tmp_path):
    ended: list[str] = []

    def note(event: Event, tenant: str) -> None:
        assert isinstance(event, Delta)
        if event.finish_reason:
            ended.append(tenant)

    with tiny_engine(tmp_path, max_sequences=1) as engine:
        engine.measure_costs()
        asked = engine.parameters(max_new_tokens=20, ignore_eos=True)
        for tenant in ["blue"] * 6 + ["green"] * 2:
            request = GenerationRequest([5, 6], asked, tenant=tenant)
            engine.submit(request, None, partial(note, tenant=tenant))
        until(lambda: len(ended) == 8)
    assert ended.index("green") <= 3
    assert ended[:5].count("green") == 2


def test_how_long_requests_waited_is_kept_until_it_is_taken(tmp_path):
    with tiny_engine(tmp_path, max_sequences=1) as engine:
        began = time.monotonic()
        with begun_together(engine):
            answers = [ask(engine, [5, 6], max_new_tokens=20)[0] for _ in range(2)]
            time.sleep(0.05)
        for answer in answers:
            answer.finish()
        first, second = engine.take_queue_seconds()
        assert 0.05 <= first < second < time.monotonic() - began
        assert engine.take_queue_seconds() == []


def test_what_is_refused_or_over_leaves_its_place_to_others(held):
    engine, go = held
    go.set()
    for _ in range(20):
        with pytest.raises(InvalidInput):
            ask(engine, [257])
        ask(engine, [1, 2], max_new_tokens=2, n=2, temperature=1.0)[0].finish(2)
        answer, ticket = ask(engine, [1, 2], max_new_tokens=100, n=2, temperature=1.0)
        ticket.cancel()
        answer.finish(2)
        with pytest.raises(Unavailable, match="timeout"):
            ask(engine, [1], max_new_tokens=100, timeout_seconds=1e-6)[0].finish()
    go.clear()
    for _ in range(5):
        ask(engine, [1, 2, 3], max_new_tokens=1)


def test_who_does_not_listen_keeps_nobody_waiting(engine):
    silent = [engine.generate([9, n], max_new_tokens=30) for n in range(3)]
    assert is_greedy([4, 5], ask(engine, [4, 5], max_new_tokens=30)[0].finish().tokens(), 30)
    for n, deltas in enumerate(silent):
        assert is_greedy([9, n], [delta.token for delta in deltas], 30)


def test_a_step_that_hangs_does_not_hang_the_end(held, monkeypatch, caplog):
    engine, _ = held
    ask(engine, [1], max_new_tokens=1)
    until(lambda: engine.counts().running == 1)
    monkeypatch.setattr(generation_thread, "_LONGEST_STEP_S", 0.1)
    engine.close()
    assert "close: a step has not ended" in caplog.text


def test_closing_lets_requests_finish_and_takes_no_more(tmp_path):
    engine = tiny_engine(tmp_path)
    answer, _ = ask(engine, [5, 6], max_new_tokens=60, ignore_eos=True)
    engine.close(drain_seconds=60)
    assert len(answer.finish().tokens()) == 60
    with pytest.raises(Unavailable, match="while it stops"):
        ask(engine, [5, 6])


def test_a_forked_process_must_load_its_own(tmp_path):
    with tiny_engine(tmp_path) as engine:
        child = os.fork()
        if not child:
            signal.alarm(20)
            try:
                engine.generate([5, 6], max_new_tokens=2)
            except Unavailable as refused:
                os._exit(7 if "forked process" in str(refused) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert list(engine.generate([5, 6], max_new_tokens=2))


def test_closing_at_once_cancels(held):
    engine, go = held
    answer, _ = ask(engine, [5, 6], max_new_tokens=120, ignore_eos=True)
    until(lambda: engine.counts().running == 1)
    closing = threading.Thread(target=engine.close)
    closing.start()
    until(lambda: engine._thread._asked.qsize() == 2)  # woken up, and to cancel what is left
    go.set()
    assert len(answer.finish().tokens()) == 1
    assert answer.cancelled
    closing.join()


def test_a_program_that_forgets_to_close_ends_all_the_same(tmp_path):
    program = """
import sys
from fusewire.engine.generation import GenerationEngine
engine = GenerationEngine(sys.argv[1])
print(next(engine.generate([1, 2], max_new_tokens=100)).token)
left = engine.generate([1, 2], max_new_tokens=100)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tiny_folder(tmp_path))], capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
