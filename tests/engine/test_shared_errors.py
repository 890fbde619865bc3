"""An error that several requests get is a copy for each."""

from __future__ import annotations

import threading
from copy import copy

import pytest
from fusewire.errors import ComputeFailed, FusewireError, InvalidInput, Overloaded

from tests.engine.generating import ask, tiny_engine


def test_a_step_that_fails_has_an_error_for_each_request(tmp_path, monkeypatch):
    with tiny_engine(tmp_path) as engine:
        step, begun = engine.model.step, threading.Event()
        monkeypatch.setattr(engine.model, "step", lambda *a: (begun.wait(60), 1 / 0))
        answers = [ask(engine, [n], max_new_tokens=3)[0] for n in range(4)]
        begun.set()
        errors = []
        for answer in answers:
            with pytest.raises(ComputeFailed, match="ZeroDivisionError") as failed:
                answer.finish()
            errors.append(failed.value)
        assert len(set(map(id, errors))) == 4
        monkeypatch.setattr(engine.model, "step", step)


def test_a_copy_says_the_same_and_has_no_traceback():
    try:
        raise InvalidInput("top_k", -5, "at least 0", "raise it")
    except FusewireError as error:
        raised, twin = error, copy(error)
    assert (type(twin), str(twin), twin.field) == (InvalidInput, str(raised), "top_k")
    assert raised.__traceback__ is not None
    assert twin.__traceback__ is None


def test_a_copy_of_a_refusal_says_when_to_come_back():
    twin = copy(Overloaded("queue: got 9 s of work waiting", 2.5))
    assert type(twin) is Overloaded
    assert str(twin) == "queue: got 9 s of work waiting; try again in 2.5 s"
    assert twin.retry_after_s == 2.5
