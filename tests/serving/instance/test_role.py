"""An instance that encodes answers light requests at once, and heavy ones by their own senders."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fusewire.engine import encoder_loop
from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.encoder_loop import EncoderLoop
from fusewire.engine.progress import Progress
from fusewire.engine.reading_lanes import SHORT_CHARACTERS
from fusewire.engine.request import Request
from fusewire.errors import Cancelled, DeadlineExceeded, InvalidInput, QueueFull, Unavailable
from fusewire.serving.instance import role as roles
from fusewire.serving.instance.metrics import ServingMetrics
from fusewire.serving.instance.response import Response, Whole
from fusewire.serving.instance.role import Role
from fusewire.text.work_queue import LONG_CHARACTERS, MOST_WAITING

from tests.engine.generating import ANSWER_TIMEOUT_S
from tests.engine.test_generation_requests import until
from tests.reference import tiny_checkpoint
from tests.serving.instance.incoming import Client
from tests.serving.instance.test_metrics import Families

SPACES = " " * (LONG_CHARACTERS + 1)  # BERT's tokenizer makes nothing of them
MIDDLE = " " * (SHORT_CHARACTERS + 1)


@pytest.fixture
def engine(tmp_path: Path) -> EncoderEngine:
    tiny_checkpoint(tmp_path, "bert")
    return EncoderEngine(tmp_path, "embed")


@pytest.fixture(autouse=True)
def light_is_light_on_a_busy_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens are computed at once, whatever computing them took before."""
    monkeypatch.setattr(encoder_loop, "_MOST_HERE_S", math.inf)


@pytest.fixture
def families() -> Families:
    return Families()


@pytest.fixture
def role(engine: EncoderEngine, families: Families) -> Iterator[Role]:
    metrics = ServingMetrics(families, "m", "embed", reloads=0)
    engine.measure_costs()
    role = Role(EncoderLoop(engine, metrics.record), metrics)
    yield role
    role.close()


@pytest.fixture
def go(engine: EncoderEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Longer texts are tokenised when it is set."""
    go = threading.Event()
    tokenize = engine.tokenize

    def slowly(works: Any, texts: Any = None) -> float:
        if texts is not None:
            assert go.wait(ANSWER_TIMEOUT_S)
        return tokenize(works, texts)

    monkeypatch.setattr(engine, "tokenize", slowly)
    yield go
    go.set()


def request(text: str, **parameters: Any) -> Request:
    return Request({"text_input": np.array([[text.encode()]], object)}, parameters)


def ask(role: Role, *texts: str) -> tuple[list[Any], list[Client]]:
    clients = [Client().asks(request(text)) for text in texts]
    return role.execute(clients), clients


@pytest.mark.parametrize("heavy", [MIDDLE, SPACES])
def test_a_heavy_request_is_answered_later_and_those_with_it_at_once(
    role: Role, go: threading.Event, families: Families, heavy: str
) -> None:
    answers, clients = ask(role, "a cat", heavy, "a dog")
    assert answers[1] is None
    assert not clients[1].answers
    alone, _ = ask(role, "a cat", "a dog", " ")
    for one, other in ((answers[0], alone[0]), (answers[2], alone[1])):
        assert np.array_equal(one["embedding"], other["embedding"])
    go.set()
    answer = clients[1].answer()
    assert isinstance(answer, dict)
    assert np.array_equal(answer["embedding"], alone[2]["embedding"])
    until(lambda: families.total("requests_total", outcome="ok") == 6)
    until(lambda: not role._in_flight)


def test_what_takes_long_to_compute_keeps_nobody_waiting(
    role: Role, engine: EncoderEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    computing, go = threading.Event(), threading.Event()
    encode = engine.model.encode

    def slowly(batch: Any) -> Any:
        if batch.tokens > 9:  # those of the heavy one
            computing.set()
            assert go.wait(ANSWER_TIMEOUT_S)
        return encode(batch)

    monkeypatch.setattr(engine.model, "encode", slowly)
    many = Client().asks(Request({"input_ids": np.full((60, 10), 7, np.int64)}))
    light = Client().asks(request("a cat"))
    waiting, answer = role.execute([many, light])
    assert waiting is None
    assert isinstance(answer, dict)
    assert computing.wait(ANSWER_TIMEOUT_S)
    # What comes now is taken, and its text is tokens when the device is free.
    seconds = time.monotonic()
    tokenized: list[Any] = []
    tokenize = engine.tokenize
    monkeypatch.setattr(
        engine, "tokenize", lambda works: (tokenize(works), tokenized.extend(works))[0]
    )
    assert ask(role, "a dog")[0] == [None]
    assert time.monotonic() - seconds < ANSWER_TIMEOUT_S / 2
    assert [len(work.items) for work in tokenized] == [1]
    assert not many.answers
    go.set()
    assert isinstance(many.answer(), dict)


def test_a_heavy_request_that_is_rejected_gets_its_error(role: Role) -> None:
    for text in ("cat " * SHORT_CHARACTERS, "cat " * LONG_CHARACTERS):
        _, (client,) = ask(role, text)
        assert isinstance(client.answer(), InvalidInput)


def test_one_too_many_is_refused_at_once(role: Role, go: threading.Event) -> None:
    answers, clients = ask(role, *[SPACES] * (MOST_WAITING + 1))
    assert answers[:-1] == [None] * MOST_WAITING
    assert isinstance(answers[-1], QueueFull)
    go.set()
    for client in clients[:-1]:
        assert client.ended.wait(ANSWER_TIMEOUT_S)


def test_an_unreadable_request_harms_no_other(role: Role) -> None:
    broken = Client().asks(InvalidInput("parameters", "bytes", "UTF-8", "encode them"))
    error, answer = role.execute([broken, Client().asks(request("a cat"))])
    assert isinstance(error, InvalidInput)
    assert isinstance(answer, dict)


def test_who_has_left_is_not_read(
    role: Role, engine: EncoderEngine, families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(engine, "_query", read.append)
    (answer,) = role.execute([Client(gone=True).asks(request("a cat"))])
    assert isinstance(answer, Cancelled)
    assert not read
    until(lambda: families.total("requests_total", outcome="cancelled") == 1)


def test_the_server_is_asked_only_behind_a_cancelled_request(
    engine: EncoderEngine, families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = [3]
    loop = EncoderLoop(engine)
    role = Role(loop, ServingMetrics(families, "m", "embed", 0), cancelled=lambda: number[0])
    try:
        gone = Client(gone=True).asks(request("a cat"))
        assert isinstance(role.execute([gone])[0], dict)
        number[0] += 1
        assert isinstance(role.execute([gone])[0], Cancelled)
        assert isinstance(role.execute([gone])[0], Cancelled)
        monkeypatch.setattr(roles, "_QUEUED_S", 0.0)
        assert isinstance(role.execute([gone])[0], dict)
    finally:
        role.close()


def test_who_leaves_while_waiting_is_not_read(
    role: Role, engine: EncoderEngine, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (first, second) = ask(role, MIDDLE, MIDDLE)
    second.gone = True
    until(lambda: any(work.cancelled for work in role.engine._not_ended))
    read: list[Any] = []
    query = engine._query
    monkeypatch.setattr(engine, "_query", lambda asked: (read.append(asked), query(asked))[1])
    go.set()
    assert isinstance(first.answer(), dict)
    assert isinstance(second.answer(), Cancelled)
    assert not read  # the first was read before


def test_past_its_deadline_nothing_is_computed(role: Role, engine: EncoderEngine) -> None:
    before = engine.progress.tokens
    for text in ("a cat", MIDDLE):
        late = Client().asks(request(text))
        late.deadline = time.monotonic()
        (answer,) = role.execute([late])
        assert isinstance(late.answer() if answer is None else answer, DeadlineExceeded)
    assert engine.progress.tokens == before


def test_unloading_waits_for_what_is_in_flight(role: Role, go: threading.Event) -> None:
    _, (client,) = ask(role, MIDDLE)
    threading.Timer(0.2, go.set).start()
    role.close()
    assert isinstance(client.answer(), dict)


def test_after_the_end_nothing_is_computed(
    role: Role, engine: EncoderEngine, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_DRAIN_S", 0.1)
    monkeypatch.setattr("fusewire.engine.encoder_loop._LONGEST_MICRO_BATCH_S", 0.1)
    _, (client,) = ask(role, SPACES)
    role.close()
    assert isinstance(client.answer(), Unavailable)
    go.set()
    (late,) = role.execute([Client().asks(request("a cat"))])
    assert isinstance(late, Unavailable)
    assert engine.progress.tokens == 0


class Answering:
    """An engine that answers at once, whatever the deadline."""

    progress = Progress()

    def submit(self, request: Request, deadline: float | None, callback: Any) -> Any:
        callback({"embedding": np.zeros((1, 2), np.float32)})
        return SimpleNamespace(deadline=deadline, cancel=lambda: None)

    def together(self) -> Any:
        return contextlib.nullcontext()

    def close(self, drain_seconds: float = 0.0) -> None: ...


def test_an_answer_after_the_deadline_is_no_goodput(families: Families) -> None:
    role = Role(Answering(), ServingMetrics(families, "m", "embed", 0, tenants={"blue"}))
    deadlines = {"blue": time.monotonic() + 600, "green": time.monotonic() - 1, "": None}
    for tenant, deadline in deadlines.items():
        client = Client().asks(Request({}, tenant=tenant))
        client.deadline = deadline
        (answer,) = role.execute([client])
        assert isinstance(answer, dict)
    role.close()
    assert families.total("requests_total", outcome="ok") == 3
    for tenant_class, count in {"blue": 1, "other": 0, "none": 1}.items():
        assert families.value("goodput_total", tenant_class=tenant_class) == count


def test_probes_are_counted_as_no_requests(families: Families) -> None:
    role = Role(Answering(), ServingMetrics(families, "m", "embed", 0))
    for probe in (True, False, True):
        (answer,) = role.execute([Client().asks(Request({}, probe=probe))])
        assert isinstance(answer, dict)
    role.close()
    for name in ("requests_total", "goodput_total"):
        assert families.total(name) == 1


def test_who_sends_for_long_holds_up_no_others_of_its_call() -> None:
    sends, freed = threading.Event(), threading.Event()

    def hang() -> bool:
        sends.set()
        return not freed.wait(ANSWER_TIMEOUT_S)

    client = Client(hang)
    response = Response(client.asks(Unavailable("none")), Whole(), queue.SimpleQueue(), _forgotten)
    response.later()
    assert response.add({"text_output": np.array([b"late"])})
    sending = threading.Thread(target=response.send)
    sending.start()
    assert sends.wait(ANSWER_TIMEOUT_S)
    assert response.now_or_later() is None
    freed.set()
    sending.join()
    assert client.ended.is_set()


def _forgotten(response: Response, answer: object) -> None:
    """Of what has ended nothing is counted."""
