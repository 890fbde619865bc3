"""Requests that the server's front has let in are waited for, while they may still come."""

from __future__ import annotations

import time

import pytest
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


def come(on_the_way):
    on_the_way.came()
    on_the_way.taken()


def test_without_a_front_that_counts_none_is_on_its_way(on_the_way):
    assert not on_the_way.some
    come(on_the_way)
    assert not on_the_way.some


def test_one_is_on_its_way_until_it_is_taken(on_the_way, front):
    front.let_in += 2
    come(on_the_way)
    assert on_the_way.some
    on_the_way.came()
    assert on_the_way.some
    on_the_way.taken()
    assert not on_the_way.some


def test_one_that_should_have_come_is_not_waited_for_again(on_the_way, front):
    front.let_in += 1
    on_the_way.wait(most=9)
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some
    come(on_the_way)
    assert not on_the_way.some


def test_one_that_comes_too_late_takes_no_other_ones_place(on_the_way, front):
    front.let_in += 1
    on_the_way.wait(most=9)
    come(on_the_way)
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some


def test_those_that_the_front_did_not_count_take_no_place(on_the_way, front):
    come(on_the_way)
    assert not on_the_way.some
    front.let_in += 1
    assert on_the_way.some


@pytest.fixture
def patient(monkeypatch):
    for name in ("_GAP_S", "_MOST_S"):
        monkeypatch.setattr(f"{OnTheWay.__module__}.{name}", MINUTES_S)


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
    """One by one."""
    answers = []
    for number in range(count):
        time.sleep(0.01)
        with engine.together():
            engine.came()
            answers.append(ask(engine, [number, 70], max_new_tokens=3)[0])
    return answers


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("count", [2, 3, 4])
def test_those_on_their_way_begin_in_one_step(engine, begun, count):
    Front(engine._thread.on_the_way).let_in = count
    for answer in send(engine, count):
        answer.finish()
    assert begun == [count]


@pytest.mark.usefixtures("patient")
def test_as_many_as_there_are_slots_for_wait_for_no_others(engine, begun):
    Front(engine._thread.on_the_way).let_in = 40
    for answer in send(engine, 4):
        answer.finish()
    assert begun == [4]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("limit", ["_GAP_S", "_MOST_S"])
def test_nobody_waits_long_for_one_that_does_not_come(engine, begun, monkeypatch, limit):
    monkeypatch.setattr(f"{OnTheWay.__module__}.{limit}", 0.001)
    Front(engine._thread.on_the_way).let_in = 3
    send(engine, 1)[0].finish()
    assert begun == [1]
