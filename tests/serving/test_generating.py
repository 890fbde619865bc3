"""An instance that generates answers each request through its own sender, whatever others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.engine.request import Request
from fusewire.errors import FusewireError, InvalidInput, Unavailable
from fusewire.serving import generating
from fusewire.serving.aside import LONG, MOST_WAITING
from fusewire.serving.conversation import Answer
from fusewire.serving.generating import Generating
from fusewire.serving.generation_metrics import GenerationMetrics

from tests.engine.generating import ANSWER_TIMEOUT_S, tiny_engine
from tests.engine.test_generation_requests import until
from tests.serving.test_metrics import Families

SLOTS, PLACES = 2, 3


class Client:
    """A sender that keeps what it is given."""

    def __init__(self, fails: Callable[[], bool] = lambda: False, gone: bool = False) -> None:
        self.answers: list[Answer] = []
        self.ended = threading.Event()
        self._fails = fails
        self._gone = gone

    def send(self, answer: Answer, final: bool) -> None:
        assert not self.ended.is_set()
        if self._fails():
            raise OSError("unreachable")
        self.answers.append(answer)
        if final:
            self.ended.set()

    def cancelled(self) -> bool:
        return self._gone

    def text(self) -> str:
        assert self.ended.wait(ANSWER_TIMEOUT_S)
        pieces = [answer["text_output"][0] for answer in self.answers if isinstance(answer, dict)]
        assert len(pieces) == len(self.answers)
        return b"".join(pieces).decode()


def request(prompt: str, **parameters: Any) -> Request:
    inputs = {"text_input": np.array([prompt.encode()], object), "stream": np.array([True])}
    return Request(inputs, {"max_new_tokens": 20, "ignore_eos": True, **parameters})


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Generating]:
    engine = tiny_engine(tmp_path, max_sequences=SLOTS, max_waiting=PLACES)
    instance = Generating(engine, GenerationMetrics(Families(), "m", reloads=0))
    yield instance
    instance.close()


@pytest.fixture
def go(instance: Generating, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps begin when it is set."""
    go = threading.Event()
    step = instance._engine.model.step
    monkeypatch.setattr(
        instance._engine.model, "step", lambda *args: step(*args) if go.wait() else None
    )
    yield go
    go.set()


def test_each_gets_its_own_text(instance: Generating) -> None:
    prompts = [f"Prompt {number}" for number in range(SLOTS + PLACES)]
    clients = [Client() for _ in prompts]
    for prompt, client in zip(prompts, clients, strict=True):
        instance.take(request(prompt), client)
    texts = [client.text() for client in clients]
    for prompt, text in zip(prompts, texts, strict=True):
        deltas = instance._engine.generate(prompt, max_new_tokens=20, ignore_eos=True)
        assert text == "".join(delta.text for delta in deltas)
    assert not instance._in_flight


def test_a_request_too_many_is_answered_before_it_is_put_down(
    instance: Generating, go: threading.Event
) -> None:
    taken = [Client() for _ in range(SLOTS + PLACES)]
    for client in taken:
        instance.take(request("Taken"), client)
    refused = Client()
    instance.take(request("Too many"), refused)
    assert refused.ended.is_set()
    (answer,) = refused.answers
    assert isinstance(answer, Unavailable)
    assert str(answer).startswith(f"queue: got {PLACES} sequences waiting")
    go.set()
    assert len({client.text() for client in taken}) == 1


def test_who_cannot_be_reached_or_has_left_gives_up_its_place(
    instance: Generating, go: threading.Event
) -> None:
    failures = iter([True])
    unreachable, gone, other = Client(lambda: next(failures, False)), Client(gone=True), Client()
    for client in (unreachable, gone, other):
        instance.take(request("On", max_new_tokens=100), client)
    assert not gone.ended.wait(3 * generating._POLL_S)  # cancelled, and ended in the next step
    go.set()
    for client in (unreachable, gone):
        assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert len(other.text()) > 0
    assert gone.answers == [None]
    (answer,) = unreachable.answers
    assert isinstance(answer, FusewireError)
    assert not instance._in_flight


def test_who_leaves_is_noticed_while_a_response_is_sent(
    instance: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sending, received = instance._engine, threading.Event(), threading.Event()
    step = engine.model.step
    monkeypatch.setattr(engine.model, "step", lambda *args: (time.sleep(0.02), step(*args))[1])
    client = Client(lambda: sending.set() or not received.wait(ANSWER_TIMEOUT_S))
    instance.take(request("On", max_new_tokens=100), client)
    assert sending.wait(ANSWER_TIMEOUT_S)
    client._gone = True
    until(lambda: engine.counts().running == 0)
    received.set()
    assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert client.answers[-1] is None
    assert engine.counts().tokens < 100


def test_long_prompts_are_read_one_by_one_while_others_are_answered(
    instance: Generating, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = threading.Event()
    encode = instance._engine.tokenizer.encode

    def slowly(texts: list[str], **how: Any) -> Any:
        if len(texts[0]) > LONG:
            assert read.wait(ANSWER_TIMEOUT_S)
        return encode(texts, **how)

    monkeypatch.setattr(instance._engine.tokenizer, "encode", slowly)
    long = request(" " * (LONG + 1))
    waiting = [Client() for _ in range(MOST_WAITING)]
    for client in waiting:
        instance.take(long, client)
    gone, other = Client(gone=True), Client()
    instance.take(long, other)
    (full,) = other.answers
    assert isinstance(full, Unavailable)
    assert str(full).startswith(f"text_input: got over {LONG} characters while {MOST_WAITING}")
    instance.take(request("Short"), short := Client())
    assert short.text()
    assert not any(client.answers for client in waiting)
    read.set()
    for client in waiting:
        assert client.ended.wait(ANSWER_TIMEOUT_S)
        assert isinstance(client.answers[0], InvalidInput)
    read.clear()
    instance.take(long, gone)  # not even read
    assert gone.ended.wait(ANSWER_TIMEOUT_S)
    assert gone.answers == [None]
    assert not instance._in_flight


def test_a_sender_that_hangs_does_not_hang_the_end(
    instance: Generating, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    freed = threading.Event()
    instance.take(request("Hangs"), Client(freed.wait))
    monkeypatch.setattr(generating, "_SEND_S", 0.1)
    instance.close()
    assert "close: the thread 'send' has not ended" in caplog.text
    freed.set()
