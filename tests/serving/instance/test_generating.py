"""An instance that generates answers each request through its own sender, whatever others do."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.request import Request
from fusewire.errors import Cancelled, FusewireError, InvalidInput, QueueFull, Unavailable
from fusewire.serving.instance import role as roles
from fusewire.serving.instance.generating import Generating
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.response import Response
from fusewire.serving.instance.role import Role
from fusewire.serving.instance.series import End
from fusewire.text.work_queue import LONG_CHARACTERS, MOST_WAITING

from tests.engine.generating import ANSWER_TIMEOUT_S, tiny_engine
from tests.engine.test_generation_requests import until
from tests.serving.instance.incoming import Client, take
from tests.serving.instance.test_metrics import Families
from tests.text_workers.folders import HARM, STRIP, give_harm_a_second

SLOTS, PLACES = 2, 3


def request(prompt: str, **parameters: Any) -> Request:
    inputs = {"text_input": np.array([prompt.encode()], object), "stream": np.array([True])}
    return Request(inputs, {"max_new_tokens": 20, "ignore_eos": True, **parameters})


def role_of(engine: GenerationEngine, **more: Any) -> Role:
    metrics = GenerationMetrics(Families(), "m", reloads=0)
    return Role(engine, metrics, Generating(engine, metrics), **more)


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Role]:
    engine = tiny_engine(tmp_path, max_sequences=SLOTS, max_waiting=PLACES)
    yield (role := role_of(engine))
    role.close()


@pytest.fixture
def go(role: Role, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps begin when it is set."""
    go = threading.Event()
    step = role.engine.model.step
    monkeypatch.setattr(role.engine.model, "step", lambda *args: step(*args) if go.wait() else None)
    yield go
    go.set()


def test_each_gets_its_own_text(role: Role) -> None:
    prompts = [f"Prompt {number}" for number in range(SLOTS + PLACES)]
    clients = [Client() for _ in prompts]
    for prompt, client in zip(prompts, clients, strict=True):
        take(role, request(prompt), client)
    texts = [client.text() for client in clients]
    for prompt, text in zip(prompts, texts, strict=True):
        deltas = role.engine.generate(prompt, max_new_tokens=20, ignore_eos=True)
        assert text == "".join(delta.text for delta in deltas)
    until(lambda: not role._in_flight)


def test_what_has_ended_is_freed_without_the_collector(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[object]] = []
    add = role.engine._loop.add

    def added(generation: Any, sequence: Any) -> None:
        made.extend([weakref.ref(generation.on_event.__self__), weakref.ref(sequence)])
        add(generation, sequence)

    monkeypatch.setattr(role.engine._loop, "add", added)
    gc.disable()
    try:
        for stream in (True, False, True):
            asked = request("Prompt")
            asked.inputs["stream"][:] = stream
            take(role, asked, client := Client())
            client.text()
        # Of the last one whoever sent it may still know.
        until(lambda: [one() is None for one in made[:4]] == [True] * 4)
    finally:
        gc.enable()


def test_of_a_text_that_is_answered_whole_nothing_is_told_before_its_end(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    add = Response.add
    monkeypatch.setattr(Response, "add", lambda *its: told.append(its[1]) or add(*its))
    first: list[float] = []
    between: list[float] = []
    monkeypatch.setattr(role._metrics, "first_token", first.append)
    monkeypatch.setattr(role._metrics, "next_token", between.append)
    whole = request("Prompt")
    whole.inputs["stream"][:] = False
    began = time.monotonic()
    take(role, whole, client := Client())
    text = client.text()
    took_s = time.monotonic() - began
    take(role, request("Prompt"), streamed := Client())
    assert text == "Prompt" + streamed.text()
    assert told[0].num_output_tokens == 20
    streamed_to = [event.num_output_tokens for event in told[1:]]
    assert streamed_to == sorted({1, *streamed_to, 20})
    assert len(first) == 2
    assert len(between) == 1 + len(streamed_to[1:])
    assert 0 < first[0] < first[0] + 19 * between[0] <= took_s


def test_a_stream_that_is_read_slowly_is_told_at_once_what_came_meanwhile(role: Role) -> None:
    sending, received = threading.Event(), threading.Event()
    client = Client(lambda: sending.set() or not received.wait(ANSWER_TIMEOUT_S))
    take(role, request("Prompt"), client)
    assert sending.wait(ANSWER_TIMEOUT_S)
    until(lambda: role.engine.counts().running == 0)
    received.set()
    text = client.text()
    deltas = role.engine.generate("Prompt", max_new_tokens=20, ignore_eos=True)
    assert text == "".join(delta.text for delta in deltas)
    assert len(client.answers) <= 3  # the first token; what it asked for then; the rest


def test_probes_are_in_no_metric(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[float] = []
    ended: list[End] = []
    monkeypatch.setattr(role._metrics, "first_token", first.append)
    monkeypatch.setattr(role._metrics, "ended", ended.extend)
    for probe in (True, False):
        take(role, replace(request("Prompt"), probe=probe), client := Client())
        assert client.text()
    until(lambda: len(ended) == 2)
    assert len(first) == 1
    assert [each.probe for each in ended] == [True, False]


def test_the_texts_of_beams_are_one_response(role: Role) -> None:
    inputs = {
        "text_input": np.array([b"Prompt"], object),
        "exclude_input_in_output": np.array([True]),
        **{f"return_{name}": np.array([True]) for name in ("finish_reason", "cumulative_logprob")},
        "return_num_output_tokens": np.array([True]),
    }
    parameters = {"max_new_tokens": 9, "num_beams": 2, "n": 2}
    take(role, Request(inputs, parameters), client := Client())
    answer = client.answer()
    assert isinstance(answer, dict)
    deltas = list(role.engine.generate("Prompt", **parameters))
    for index in range(2):
        mine = [delta for delta in deltas if delta.index == index]
        assert answer["text_output"][index].decode() == "".join(delta.text for delta in mine)
        assert answer["num_output_tokens"][index] == len(mine)
        assert answer["finish_reason"][index].decode() == mine[-1].finish_reason
        total = mine[-1].cumulative_logprob
        assert answer["cumulative_logprob"][index] == pytest.approx(total, rel=1e-6)
    until(lambda: not role._in_flight)


def test_a_request_too_many_is_answered_before_it_is_put_down(
    role: Role, go: threading.Event
) -> None:
    taken = [Client() for _ in range(SLOTS + PLACES)]
    for client in taken:
        take(role, request("Taken"), client)
    refused = Client()
    take(role, request("Too many"), refused)
    assert refused.ended.is_set()
    (answer,) = refused.answers
    assert isinstance(answer, Unavailable)
    assert str(answer).startswith(f"queue: got {PLACES} sequences waiting")
    go.set()
    assert len({client.text() for client in taken}) == 1


def test_who_cannot_be_reached_or_has_left_gives_up_its_place(
    role: Role, go: threading.Event
) -> None:
    failures = iter([True])
    unreachable, gone, other = Client(lambda: next(failures, False)), Client(), Client()
    for client in (unreachable, gone, other):
        take(role, request("On", max_new_tokens=100), client)
    until(lambda: role.engine.counts().running > 0)  # in a step that waits for `go`
    gone.gone = True
    assert not gone.ended.wait(3 * roles._POLL_S)  # cancelled, and ended in the next step
    go.set()
    for client in (unreachable, gone):
        assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert len(other.text()) > 0
    assert isinstance(gone.answer(), Cancelled)
    (answer,) = unreachable.answers
    assert isinstance(answer, FusewireError)
    until(lambda: not role._in_flight)


def test_who_leaves_is_noticed_while_a_response_is_sent(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sending, received = role.engine, threading.Event(), threading.Event()
    step, steps = engine.model.step, []

    def waits_for_the_cancellation(*args: Any) -> Any:
        steps.append(args)
        if len(steps) > 1:
            until(lambda: not engine._thread._asked.empty())
        return step(*args)

    monkeypatch.setattr(engine.model, "step", waits_for_the_cancellation)
    client = Client(lambda: sending.set() or not received.wait(ANSWER_TIMEOUT_S))
    take(role, request("On", max_new_tokens=100), client)
    assert sending.wait(ANSWER_TIMEOUT_S)
    client.gone = True
    until(lambda: engine.counts().running == 0)
    received.set()
    assert client.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(client.answers[-1], Cancelled)
    assert len(steps) == 2  # the second ran when its client left


def test_while_nobody_is_cancelled_none_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_ASK_S", inf)
    cancelled, go = [0], threading.Event()
    engine = tiny_engine(tmp_path, max_sequences=SLOTS, max_waiting=PLACES)
    step = engine.model.step
    monkeypatch.setattr(engine.model, "step", lambda *args: step(*args) if go.wait() else None)
    role = role_of(engine, cancelled=lambda: cancelled[0])
    clients = [Client(), Client()]
    for client in clients:
        take(role, request("On", max_new_tokens=100), client)
    gone, stays = clients
    gone.gone = True
    time.sleep(5 * roles._POLL_S)
    assert (gone.asked, stays.asked) == (0, 0)
    cancelled[0] += 1
    until(lambda: (gone.asked, stays.asked) == (1, 1))
    go.set()
    assert gone.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(gone.answer(), Cancelled)
    assert stays.text()
    role.close()


def test_long_prompts_are_read_one_by_one_while_others_are_answered(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = threading.Event()
    encode = role.engine.tokenizer.encode

    def slowly(texts: list[str], **how: Any) -> Any:
        if len(texts[0]) > LONG_CHARACTERS:
            assert read.wait(ANSWER_TIMEOUT_S)
        return encode(texts, **how)

    monkeypatch.setattr(role.engine.tokenizer, "encode", slowly)
    long = request(" " * (LONG_CHARACTERS + 1))
    waiting = [Client() for _ in range(MOST_WAITING)]
    for client in waiting:
        take(role, long, client)
    gone, other = Client(gone=True), Client()
    take(role, long, other)
    (full,) = other.answers
    assert isinstance(full, Unavailable)
    assert str(full).startswith(
        f"text_input: got over {LONG_CHARACTERS} characters while {MOST_WAITING}"
    )
    take(role, request("Short"), short := Client())
    assert short.text()
    assert not any(client.answers for client in waiting)
    read.set()
    for client in waiting:
        assert client.ended.wait(ANSWER_TIMEOUT_S)
        assert isinstance(client.answers[0], InvalidInput)
    read.clear()
    take(role, long, gone)  # not even read
    assert gone.ended.wait(ANSWER_TIMEOUT_S)
    assert isinstance(gone.answer(), Cancelled)
    until(lambda: not role._in_flight)


def test_who_is_refused_or_leaves_while_it_waits_counts_for_its_tenant(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[End] = []
    monkeypatch.setattr(role._metrics, "ended", ended.extend)
    assert isinstance(role._begins, Generating)
    long = replace(request(" " * (LONG_CHARACTERS + 1)), tenant="blue")
    take(role, long, gone := Client(gone=True))
    until(lambda: len(ended) == 1)
    monkeypatch.setattr(role._begins._long_texts, "_waiting", threading.BoundedSemaphore(0))
    take(role, long, refused := Client())
    until(lambda: len(ended) == 2)
    assert isinstance(gone.answer(), Cancelled)
    assert isinstance(refused.answer(), QueueFull)
    assert [each.tenant for each in ended] == ["blue", "blue"]


def test_a_sender_that_hangs_does_not_hang_the_end(
    role: Role, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    freed = threading.Event()
    take(role, request("Hangs"), Client(freed.wait))
    monkeypatch.setattr(roles, "_SEND_S", 0.1)
    role.close()
    assert "close: the thread 'send' has not ended" in caplog.text
    freed.set()


def messages(content: str = "hi") -> Request:
    text = json.dumps([{"role": "user", "content": content}]).encode()
    parameters = {"max_new_tokens": 20, "ignore_eos": True}
    return Request({"messages": np.array([text], object), "stream": np.array([True])}, parameters)


@pytest.fixture
def harm(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """When it is set, a template that does harm has a second left."""
    harm = threading.Event()
    give_harm_a_second(monkeypatch, begins=lambda: harm.wait(ANSWER_TIMEOUT_S))
    yield harm
    harm.set()


@pytest.fixture
def rendering(tmp_path: Path, harm: threading.Event) -> Iterator[Role]:
    """Its template takes minutes for harm."""
    (tmp_path / "chat_template.jinja").write_text(HARM.format(STRIP))
    engine = tiny_engine(tmp_path, max_sequences=SLOTS, max_waiting=PLACES)
    yield (role := role_of(engine))
    harm.set()
    role.close()


def test_messages_are_rendered_for_the_model(rendering: Role) -> None:
    theirs, ours = Client(), Client()
    take(rendering, messages("Hello"), theirs)
    take(rendering, request("Hello"), ours)
    assert theirs.text() == ours.text()


def test_a_template_without_end_keeps_only_conversations_waiting(
    rendering: Role, harm: threading.Event
) -> None:
    late, long, after, other = Client(), Client(), Client(), Client()
    take(rendering, messages(), first := Client())
    first.text()
    for asked, client in ((messages("harm"), late), (messages("x" * LONG_CHARACTERS), long)):
        take(rendering, asked, client)
    take(rendering, messages(), after)
    take(rendering, request("Other"), other)
    assert len(other.text()) > 0
    assert not late.ended.is_set()
    harm.set()
    for client, words in (
        (late, "messages: got what the model's chat tem"),
        (long, "messages: got"),
    ):
        assert client.ended.wait(ANSWER_TIMEOUT_S)
        (answer,) = client.answers
        assert isinstance(answer, InvalidInput)
        assert str(answer).startswith(words)
    assert len(after.text()) > 0


def test_too_many_conversations_are_refused(rendering: Role) -> None:
    take(rendering, messages("harm"), Client())
    clients = [Client() for _ in range(PLACES + 2)]
    for client in clients:
        take(rendering, messages(), client)
    answers = [answer for client in clients for answer in client.answers]
    assert len(answers) == 3  # a place is the first's until it is answered
    assert all(str(answer).startswith(f"queue: got messages while {PLACES}") for answer in answers)
