"""An instance that encodes answers long texts by their own senders, and the others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.request import Request
from fusewire.errors import InvalidInput, Unavailable
from fusewire.serving.aside import LONG, MOST_WAITING
from fusewire.serving.encoding import Encoding, Later
from fusewire.serving.metrics import ServingMetrics

from tests.engine.generating import ANSWER_TIMEOUT_S
from tests.reference import tiny_checkpoint
from tests.serving.test_generating import Client
from tests.serving.test_metrics import Families

SPACES = " " * (LONG + 1)  # BERT's tokenizer makes nothing of them


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Encoding]:
    tiny_checkpoint(tmp_path, "bert")
    engine = EncoderEngine(tmp_path, "embed")
    instance = Encoding(engine, ServingMetrics(Families(), "m", "embed", reloads=0))
    yield instance
    instance.close()


@pytest.fixture
def go(instance: Encoding, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Long texts are read when it is set."""
    go = threading.Event()
    prepare = instance._engine.prepare
    monkeypatch.setattr(
        instance._engine, "prepare", lambda request: go.wait(ANSWER_TIMEOUT_S) and prepare(request)
    )
    yield go
    go.set()


def request(text: str, **parameters: Any) -> Request:
    return Request({"text_input": np.array([[text.encode()]], object)}, parameters)


def ask(instance: Encoding, *texts: str) -> tuple[list[Any], list[Client]]:
    clients = [Client() for _ in texts]
    return instance.answer([request(text) for text in texts], clients.__getitem__), clients


def test_a_long_text_is_answered_later_and_those_with_it_at_once(
    instance: Encoding, go: threading.Event
) -> None:
    answers, clients = ask(instance, "a cat", SPACES, "a dog")
    assert answers[1] is Later.LATER
    assert not clients[1].answers
    alone, _ = ask(instance, "a cat", "a dog", " ")
    for one, other in ((answers[0], alone[0]), (answers[2], alone[1])):
        assert np.array_equal(one["embedding"], other["embedding"])
    go.set()
    assert clients[1].ended.wait(ANSWER_TIMEOUT_S)
    (answer,) = clients[1].answers
    assert isinstance(answer, dict)
    assert np.array_equal(answer["embedding"], alone[2]["embedding"])


def test_a_long_text_that_is_rejected_gets_its_error(instance: Encoding) -> None:
    _, (client,) = ask(instance, "cat " * LONG)
    assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(client.answers[0], InvalidInput)


def test_one_too_many_is_refused_at_once(instance: Encoding, go: threading.Event) -> None:
    answers, clients = ask(instance, *[SPACES] * (MOST_WAITING + 1))
    assert answers[:-1] == [Later.LATER] * MOST_WAITING
    assert isinstance(answers[-1], Unavailable)
    go.set()
    for client in clients[:-1]:
        assert client.ended.wait(ANSWER_TIMEOUT_S)


def test_who_has_left_is_not_read(instance: Encoding, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(instance._engine, "_query", read.append)
    gone = Client(gone=True)
    assert instance.answer([request(SPACES)], lambda place: gone) == [Later.LATER]
    assert gone.ended.wait(ANSWER_TIMEOUT_S)
    assert gone.answers == [None]
    assert not read


def test_after_the_end_nothing_is_computed(
    instance: Encoding, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewire.serving.aside._DRAIN_S", 0.1)
    _, (client,) = ask(instance, SPACES)
    instance.close()
    go.set()
    assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(client.answers[0], Unavailable)
