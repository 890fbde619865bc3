"""Requests at any time: each has its answer once, whatever comes with it, before and after."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusewire.engine import encoder, encoder_loop, micro_batches
from fusewire.engine.encoder import EncoderEngine, Request
from fusewire.engine.encoder_loop import LIGHT_TOKENS, EncoderLoop
from fusewire.engine.reading_lanes import SHORT_CHARACTERS
from fusewire.engine.request import Counts
from fusewire.errors import (
    Cancelled,
    ComputeFailed,
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    QueueFull,
    Unavailable,
)
from fusewire.settings import EngineSettings
from fusewire.text.work_queue import LONG_CHARACTERS

from tests.engine.counting import CountingModel, answered, engine, request
from tests.engine.generating import ANSWER_TIMEOUT_S
from tests.reference import tiny_checkpoint
from tests.server.asking import until

BUDGET = 2 * LIGHT_TOKENS
HEAVY = [[5] * 90 for _ in range(60)]  # six micro-batches


class Held(CountingModel):
    """Computes when told to: `steps` micro-batches may be computed."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.steps = threading.Semaphore(0)
        self.waiting = threading.Event()

    def encode(self, batch):
        self.waiting.set()
        assert self.steps.acquire(timeout=ANSWER_TIMEOUT_S)
        return super().encode(batch)

    def go(self, steps: int = 10_000) -> None:
        self.steps.release(steps)

    def hold(self) -> None:
        """Whatever was told before, while it computes nothing."""
        self.steps = threading.Semaphore(0)
        self.waiting.clear()


class Answer:
    def __init__(self) -> None:
        self.came = threading.Event()
        self.all: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self.all.append(answer)
        self.came.set()

    def wait(self) -> Any:
        assert self.came.wait(ANSWER_TIMEOUT_S)
        (answer,) = self.all
        return answer


@pytest.fixture
def model() -> Held:
    return Held()


@pytest.fixture
def loop(tmp_path, model) -> Iterator[EncoderLoop]:
    loop = EncoderLoop(engine(tmp_path, model, max_batch_tokens=BUDGET))
    yield loop
    model.go()
    loop.close()


def submit(
    loop: EncoderLoop, *rows: list[int], deadline: float | None = None
) -> tuple[Answer, Any]:
    answer = Answer()
    return answer, loop.submit(request(*rows), deadline, answer)


def test_a_light_request_is_answered_by_the_thread_that_submits_it(loop, model):
    model.go()
    threads = []
    answer = Answer()
    with loop.together():
        loop.submit(
            request([1, 2]), None, lambda got: (answer(got), threads.append(threading.get_ident()))
        )
        assert not answer.all
    answered(answer.wait(), [1, 2])
    assert threads == [threading.get_ident()]


def test_what_comes_together_is_computed_together(loop, model):
    model.go()
    answers = [Answer() for _ in range(3)]
    with loop.together():
        for number, answer in enumerate(answers):
            loop.submit(request([number] * 3), None, answer)
    for number, answer in enumerate(answers):
        answered(answer.wait(), [number] * 3)
    assert model.seen == [[3, 3, 3]]


def test_a_heavy_request_does_not_hold_up_a_light_one_that_came_with_it(loop, model):
    heavy, light = Answer(), Answer()
    model.go(1)
    with loop.together():
        loop.submit(request(*HEAVY), None, heavy)
        loop.submit(request([1]), None, light)
    answered(light.wait(), [1])
    assert not heavy.all
    model.go()
    answered(heavy.wait(), *HEAVY)
    assert model.seen[0] == [1]


def test_a_light_request_joins_the_next_micro_batch(loop, model):
    heavy, _ = submit(loop, *HEAVY)
    assert model.waiting.wait(ANSWER_TIMEOUT_S)
    light, _ = submit(loop, [1])
    with loop.together():  # nor does this thread wait for what another computes
        other, _ = submit(loop, [2])
    model.go(2)
    answered(light.wait(), [1])
    answered(other.wait(), [2])
    assert not heavy.all
    model.go()
    answered(heavy.wait(), *HEAVY)
    assert [len(batch) for batch in model.seen[:2]] == [11, 13]


@pytest.mark.parametrize("slow", [True, False])
def test_a_micro_batch_is_no_longer_than_others_may_wait(tmp_path, slow, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Model(CountingModel):
        def encode(self, batch):
            now[0] += batch.tokens * (2e-4 if slow else 2e-6)
            return super().encode(batch)

    model = Model()
    measured = engine(tmp_path, model, max_batch_tokens=16384)
    measured.measure_costs()
    model.seen.clear()
    loop = EncoderLoop(measured)
    rows = [[5] * 90] * 100
    answered(submit(loop, *rows)[0].wait(), *rows)
    sizes = [sum(batch) for batch in model.seen]
    assert max(sizes) <= 1024 if slow else max(sizes) > 4096
    loop.close()


def test_a_text_is_tokenised_while_others_are_computed(tmp_path, monkeypatch):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    got = EncoderEngine(tmp_path, "hidden")
    loop = EncoderLoop(got)
    computing, go = threading.Event(), threading.Event()
    encode, tokenize = got.model.encode, got.tokenize
    monkeypatch.setattr(
        got.model,
        "encode",
        lambda batch: (computing.set(), go.wait(ANSWER_TIMEOUT_S), encode(batch))[2],
    )
    tokenized = threading.Semaphore(0)
    monkeypatch.setattr(got, "tokenize", lambda *args: (tokenize(*args), tokenized.release())[0])
    answers = [Answer() for _ in range(3)]

    loop.submit(text(10), None, answers[0])
    assert computing.wait(ANSWER_TIMEOUT_S)
    loop.submit(text(20), None, answers[1])
    loop.submit(text(SHORT_CHARACTERS + 2), None, answers[2])
    for _ in answers:
        assert tokenized.acquire(timeout=ANSWER_TIMEOUT_S)
    assert not any(answer.all for answer in answers)
    go.set()
    for answer, length in zip(answers, (10, 20, SHORT_CHARACTERS + 2), strict=True):
        [alone] = got.answer([text(length)])
        np.testing.assert_array_equal(
            answer.wait()["last_hidden_state"], alone["last_hidden_state"]
        )
    loop.close()


def text(length: int, rows: int = 1) -> Request:
    return Request(
        {"text_input": np.array([[b"a " * (length // 2)]] * rows, object)}, {"truncate": True}
    )


@pytest.mark.parametrize(
    ("length", "rows"), [(100, 1), (SHORT_CHARACTERS + 2, LONG_CHARACTERS // 2048)]
)
def test_a_longer_text_is_read_however_many_others_wait(tmp_path, monkeypatch, length, rows):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    got = EncoderEngine(tmp_path, "hidden", EngineSettings(max_batch_tokens=BUDGET))
    loop = EncoderLoop(got)
    computing, go = threading.Event(), threading.Event()
    encode, tokenize = got.model.encode, got.tokenize
    monkeypatch.setattr(
        got.model,
        "encode",
        lambda batch: (computing.set(), go.wait(ANSWER_TIMEOUT_S), encode(batch))[2],
    )
    read = threading.Event()

    def tokenized(works, *reader):
        found = tokenize(works, *reader)
        if any(work.request.characters == SHORT_CHARACTERS + 2 for work in works):
            read.set()
        return found

    monkeypatch.setattr(got, "tokenize", tokenized)
    others = [Answer() for _ in range(100 if rows == 1 else 6)]
    for answer in others:
        loop.submit(text(length, rows), None, answer)
    assert computing.wait(ANSWER_TIMEOUT_S)
    until(lambda: len(loop._ready) >= 4)
    longer = Answer()
    loop.submit(text(SHORT_CHARACTERS + 2), None, longer)
    assert read.wait(ANSWER_TIMEOUT_S)
    assert not any(answer.all for answer in others)
    go.set()
    for answer in (longer, *others):
        assert isinstance(answer.wait(), dict)
    loop.close()


def test_the_cancelled_and_the_late_are_not_computed(loop, model):
    first, _ = submit(loop, [1])
    assert model.waiting.wait(ANSWER_TIMEOUT_S)
    late, _ = submit(loop, [2], deadline=time.monotonic() + 0.02)
    past, _ = submit(loop, [3], deadline=time.monotonic())
    gone, ticket = submit(loop, [4])
    ticket.cancel()
    time.sleep(0.03)
    model.go()
    answered(first.wait(), [1])
    assert isinstance(late.wait(), DeadlineExceeded)
    assert isinstance(past.wait(), DeadlineExceeded)
    assert isinstance(gone.wait(), Cancelled)
    assert model.seen == [[1]]


def test_work_that_is_cancelled_or_late_stops_at_the_next_micro_batch(loop, model):
    gone, ticket = submit(loop, *HEAVY)
    late, _ = submit(loop, *HEAVY, deadline=time.monotonic() + 0.05)
    model.go(1)
    assert model.waiting.wait(ANSWER_TIMEOUT_S)
    ticket.cancel()
    time.sleep(0.06)
    model.go()
    assert isinstance(gone.wait(), Cancelled)
    assert isinstance(late.wait(), DeadlineExceeded)
    assert len(model.seen) < 6


def test_what_fails_harms_no_other(tmp_path):
    model = CountingModel(poison=99)
    loop = EncoderLoop(engine(tmp_path, model, max_batch_tokens=BUDGET))
    for rows in ([[99] * 5], [[99] * 90 for _ in range(60)]):
        broken, _ = submit(loop, *rows)
        assert isinstance(broken.wait(), ComputeFailed)
        fine, _ = submit(loop, [1, 2])
        answered(fine.wait(), [1, 2])
    loop.close()


def test_a_defect_leaves_nobody_waiting(loop, model, monkeypatch):
    first, _ = submit(loop, [1])
    assert model.waiting.wait(ANSWER_TIMEOUT_S)
    second, _ = submit(loop, [2])
    monkeypatch.setattr(loop, "_tell", lambda: 1 / 0)
    model.go()
    answered(first.wait(), [1])
    assert isinstance(second.wait(), ComputeFailed)
    monkeypatch.undo()
    third, _ = submit(loop, [3])
    answered(third.wait(), [3])


def test_closing_drains_and_takes_no_more(loop, model):
    answers = [submit(loop, [number])[0] for number in range(3)]
    threading.Timer(0.1, model.go).start()
    loop.close(drain_seconds=ANSWER_TIMEOUT_S)
    for number, answer in enumerate(answers):
        answered(answer.wait(), [number])
    with pytest.raises(Unavailable, match="while it stops"):
        submit(loop, [1])


def test_closing_ends_what_is_left_after_the_drain(loop, model, monkeypatch, caplog):
    monkeypatch.setattr(encoder_loop, "_LONGEST_MICRO_BATCH_S", 0.05)
    running, _ = submit(loop, *HEAVY)
    assert model.waiting.wait(ANSWER_TIMEOUT_S)
    waiting, _ = submit(loop, [1])
    loop.close(drain_seconds=0.05)
    assert isinstance(running.wait(), Unavailable)
    assert isinstance(waiting.wait(), Unavailable)
    assert "the device hangs" in caplog.text
    model.go()
    loop._thread.join(ANSWER_TIMEOUT_S)
    assert not loop._thread.is_alive()
    assert len(model.seen) == 1


def test_a_request_there_is_no_memory_to_take_is_not_waited_for(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    loop = EncoderLoop(EncoderEngine(tmp_path, "hidden"))

    class NoRoom(np.ndarray):
        def copy(self, order="C"):
            raise MemoryError

    longer = text(SHORT_CHARACTERS + 2)
    longer.inputs["text_input"] = longer.inputs["text_input"].view(NoRoom)
    answer = Answer()
    with pytest.raises(MemoryError):
        loop.submit(longer, None, answer)
    began = time.monotonic()
    loop.close(ANSWER_TIMEOUT_S)
    assert time.monotonic() - began < ANSWER_TIMEOUT_S / 2
    assert not answer.all


def test_what_has_ended_by_closing_is_not_read_any_more(tmp_path, monkeypatch):
    tiny_checkpoint(tmp_path, "bert", "hidden")
    got = EncoderEngine(tmp_path, "hidden")
    reading, go, read, tokenize = threading.Event(), threading.Event(), [], got.tokenize

    def tokenized(works, *reader):
        read.extend(works)
        reading.set()
        assert go.wait(ANSWER_TIMEOUT_S)
        return tokenize(works, *reader)

    monkeypatch.setattr(got, "tokenize", tokenized)
    loop = EncoderLoop(got)
    answers = [Answer() for _ in range(5)]
    for answer in answers:
        loop.submit(text(SHORT_CHARACTERS + 2), None, answer)
    assert reading.wait(ANSWER_TIMEOUT_S)
    loop.close()
    go.set()
    for answer in answers:
        assert isinstance(answer.wait(), Unavailable)
    for lane in (loop._lanes._middle, loop._lanes._long):
        lane.queue.close()
    assert len(read) == 1


def test_every_request_is_answered_once_whoever_submits_it(tmp_path):
    told: list[Counts] = []
    loop = EncoderLoop(engine(tmp_path, CountingModel(), max_batch_tokens=200), told.append)
    chosen = np.random.default_rng(0)
    asked: list[tuple[list[list[int]], Answer]] = []

    def client(rng) -> None:
        for _ in range(40):
            with loop.together():
                for _ in range(rng.integers(1, 5)):
                    rows = [[int(rng.integers(1, 900))] * int(rng.integers(1, 90))] * int(
                        rng.choice([1, 1, 1, 12])
                    )
                    answer = Answer()
                    asked.append((rows, answer))
                    loop.submit(request(*rows), None, answer)

    threads = [threading.Thread(target=client, args=(rng,)) for rng in chosen.spawn(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows, answer in asked:
        answered(answer.wait(), *rows)
    loop.close()
    assert sum(counts.tokens for counts in told) == sum(sum(map(len, rows)) for rows, _ in asked)
    assert sum(counts.sequences for counts in told) == sum(len(rows) for rows, _ in asked)


class Slow(Held):
    """Takes a millisecond for ten tokens, by a clock that nothing else moves."""

    now = 1000.0

    def encode(self, batch):
        answer = super().encode(batch)
        self.now += batch.tokens * 1e-4
        return answer


@pytest.fixture
def clock(monkeypatch) -> Slow:
    """The engine's, whatever else the machine does."""
    model = Slow()
    clock = SimpleNamespace(monotonic=lambda: model.now, perf_counter=lambda: model.now)
    for module in (encoder, encoder_loop, micro_batches):
        monkeypatch.setattr(module, "time", clock)
    return model


@contextmanager
def measured(tmp_path, model: Slow, **settings: float) -> Iterator[EncoderLoop]:
    """As a server does it; then the model computes nothing until it is told to."""
    made = engine(tmp_path, model, **settings)
    model.go()
    made.measure_costs()
    model.seen.clear()
    model.hold()
    loop = EncoderLoop(made)
    yield loop
    model.go()
    loop.close()


@pytest.fixture
def slow(tmp_path, clock) -> Iterator[EncoderLoop]:
    with measured(tmp_path, clock, slo_ms=1000.0, max_queue_ms=300.0) as loop:
        yield loop


def test_what_would_be_late_is_refused_at_once_and_is_not_read(slow, clock, monkeypatch):
    rows = [[5] * 90] * 100  # 0.9 s
    first, _ = submit(slow, *rows[:30])
    with pytest.raises(Overloaded, match=r"queue: got .+ s of work before this request") as refused:
        submit(slow, *rows, deadline=clock.now + 0.3)
    assert refused.value.retry_after_s > 0
    clock.go()
    first.wait()
    until(lambda: slow.backlog_s == 0)
    clock.hold()
    taken: list[Answer] = []

    def more() -> None:
        while len(taken) < 100:
            taken.append(submit(slow, *rows[:8])[0])

    with pytest.raises(Overloaded, match="wanted at most 0"):  # nothing waits longer than 0.3 s
        more()
    assert len(taken) == 3  # of 0.07 s each, as there is a margin
    assert slow.backlog_s > 0.1
    read, seen = slow._engine.tokenize, []
    monkeypatch.setattr(
        slow._engine, "tokenize", lambda works: (seen.extend(works), read(works))[1]
    )
    with pytest.raises(Overloaded):
        submit(slow, *rows)
    assert not seen
    clock.go()
    for answer in taken:
        answered(answer.wait(), *rows[:8])
    until(lambda: slow.backlog_s == 0)
    again, _ = submit(slow, *rows[:8])
    answered(again.wait(), *rows[:8])
    assert len(seen) == 1


def test_what_can_no_longer_be_in_time_is_not_computed(slow, clock):
    first, _ = submit(slow, *[[5] * 90] * 20)
    assert clock.waiting.wait(ANSWER_TIMEOUT_S)
    work = slow.submit(request([7] * 90), clock.now + 0.6, answer := Answer())
    work.deadline = clock.now + 0.005  # less than it takes
    clock.go()
    assert isinstance(answer.wait(), DeadlineExceeded)
    answered(first.wait(), *[[5] * 90] * 20)


def test_the_lower_priority_number_is_first(tmp_path, clock):
    with measured(tmp_path, clock) as loop:
        submit(loop, *[[5] * 90] * 20)
        assert clock.waiting.wait(ANSWER_TIMEOUT_S)
        ended: list[int] = []
        for number, priority in [(5, 0), (6, 0), (7, -1)]:
            one = request(*[[number] * 90] * 10)
            one.priority = priority
            loop.submit(one, None, lambda answer, number=number: ended.append(number))
        clock.go()
        until(lambda: len(ended) == 3)
        assert ended[0] == 7


def overloaded(loop: EncoderLoop, priority: int = 0) -> list[Answer]:
    """Requests of 0.09 s that wait, until no more are taken; none is computed meanwhile."""
    taken: list[Answer] = []

    def more() -> None:
        while len(taken) < 100:
            one = request(*[[5] * 90] * 10)
            one.priority = priority
            loop.submit(one, None, answer := Answer())
            taken.append(answer)

    with pytest.raises(Overloaded):
        more()
    return taken


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ({"input_ids": np.zeros((1, 200), np.int64)}, {}),  # more than the model reads
        ({"pixels": np.zeros((1, 2), np.int64)}, {}),
        ({"input_ids": np.ones((1, 2), np.int64)}, {"max_length": -3}),
    ],
)
def test_what_is_invalid_is_so_however_much_waits(slow, clock, inputs, parameters):
    taken = overloaded(slow)
    slow.submit(Request(inputs, parameters), None, answer := Answer())
    assert isinstance(answer.wait(), InvalidInput)
    clock.go()
    for each in taken:
        each.wait()


def test_who_finds_no_place_to_be_read_displaces_none(slow, clock, monkeypatch):
    taken = overloaded(slow, priority=1)
    lane, held = slow._lanes._middle, threading.Event()
    monkeypatch.setattr(slow._lanes, "lane", lambda work: lane)
    one = request(*[[6] * 90] * 20)
    one.priority = -1

    def fill() -> None:
        while True:
            lane.queue.take(held.wait, pytest.fail)

    try:
        with pytest.raises(QueueFull):
            fill()
        with pytest.raises(QueueFull):
            slow.submit(one, None, Answer())
    finally:
        held.set()
    clock.go()
    assert not [each for each in taken if "of higher priority" in str(each.wait())]
    until(lambda: slow.backlog_s == 0 and lane.queue._waiting._value > 0)
    slow.submit(one, None, answer := Answer())  # places are free again
    answered(answer.wait(), *[[6] * 90] * 20)


def test_who_is_refused_gives_its_place_to_be_read_back(slow, clock, monkeypatch):
    lane = slow._lanes._middle
    monkeypatch.setattr(slow._lanes, "lane", lambda work: lane)
    places = lane.queue._waiting._value
    taken = overloaded(slow)
    clock.go()
    for each in taken:
        each.wait()
    until(lambda: lane.queue._waiting._value == places)


def test_who_gives_way_to_a_higher_priority_is_told_at_once(slow, clock):
    taken = overloaded(slow, priority=1)
    one = request(*[[6] * 90] * 15)
    one.priority = -1
    slow.submit(one, clock.now + 0.5, urgent := Answer())
    told = [each for each in taken if each.came.is_set()]
    assert 0 < len(told) < len(taken)
    for each in told:
        assert "of higher priority" in str(each.wait())
    clock.go()
    answered(urgent.wait(), *[[6] * 90] * 15)
    for each in taken:
        if each not in told:
            answered(each.wait(), *[[5] * 90] * 10)
