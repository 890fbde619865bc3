"""Requests that the server's front has let in are waited for, while they may still come."""

from __future__ import annotations

import time

import pytest
from fusewire.engine import generation_thread
from fusewire.engine.on_the_way import OnTheWay

from tests.engine.generating import ask, tiny_engine

MINUTES_S = 600


class Front:
    def __init__(self, on_the_way: OnTheWay) -> None:
        self.let_in = 0
        on_the_way.let_in = lambda: self.let_in


@pytest.fixture
def on_the_way():
    return OnTheWay()


@pytest.fixture
def front(on_the_way):
    return Front(on_the_way)


def test_without_a_front_that_counts_none_is_on_its_way(on_the_way):
    assert not on_the_way.some
    on_the_way.came()
    assert not on_the_way.some


def test_one_is_on_its_way_until_it_comes(on_the_way, front):
    front.let_in += 2
    on_the_way.came()
    assert on_the_way.some
    on_the_way.came()
    assert not on_the_way.some


def test_one_that_is_given_up_is_not_waited_for_again(on_the_way, front):
    front.let_in += 1
    on_the_way.give_up()
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some
    on_the_way.came()
    assert not on_the_way.some


def test_one_that_comes_though_it_was_given_up_takes_no_other_ones_place(on_the_way, front):
    front.let_in += 1
    on_the_way.give_up()
    on_the_way.came()
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some


def test_those_that_the_front_did_not_count_take_no_place(on_the_way, front):
    on_the_way.came()
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some


@pytest.fixture
def engine(tmp_path):
    with tiny_engine(tmp_path, max_sequences=4) as engine:
        yield engine


@pytest.fixture
def begun(engine, monkeypatch):
    """How many requests each step began, of those that began some."""
    found, plan = [], engine._loop.scheduler.plan

    def planned(now):
        step = plan(now)
        if step.begun:
            found.append(len(step.begun))
        return step

    monkeypatch.setattr(engine._loop.scheduler, "plan", planned)
    return found


def send(engine, count):
    answers = []
    for number in range(count):
        engine.came()
        answers.append(ask(engine, [number, 70], max_new_tokens=3)[0])
        time.sleep(0.01)
    return answers


def test_those_on_their_way_begin_in_one_step(engine, begun, monkeypatch):
    monkeypatch.setattr(generation_thread, "_GAP_S", MINUTES_S)
    monkeypatch.setattr(generation_thread, "_MOST_WAIT_S", MINUTES_S)
    Front(engine._thread.on_the_way).let_in = 4
    for answer in send(engine, 4):
        answer.finish()
    assert begun == [4]


@pytest.mark.parametrize("least", ["_GAP_S", "_MOST_WAIT_S"])
def test_nobody_waits_long_for_one_that_does_not_come(engine, begun, monkeypatch, least):
    for name in ("_GAP_S", "_MOST_WAIT_S"):
        monkeypatch.setattr(generation_thread, name, 0.0 if name == least else MINUTES_S)
    front = Front(engine._thread.on_the_way)
    front.let_in = 3
    alone = send(engine, 1)[0]
    if least == "_MOST_WAIT_S":  # it is over with the next
        send(engine, 1)
    alone.finish()
    assert sum(begun) <= 2


def test_where_there_are_no_slots_for_others_nobody_waits_for_them(engine, begun, monkeypatch):
    monkeypatch.setattr(generation_thread, "_GAP_S", MINUTES_S)
    slots = engine.settings.max_sequences
    Front(engine._thread.on_the_way).let_in = 10 * slots
    with engine.together():
        answers = send(engine, slots)
    for answer in answers:
        answer.finish()
    assert begun == [slots]
