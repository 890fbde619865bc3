"""A kind of error stays the same from where it is raised to the client, over every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fusewire_client as client
import pytest
from fusewire import kernels
from fusewire.engine.admission import Admission
from fusewire.engine.generation_errors import TOO_LATE
from fusewire.engine.request import CANCELLED, CLOSED, failure
from fusewire.errors import (
    Cancelled,
    ComputeFailed,
    DeadlineExceeded,
    FusewireError,
    InvalidInput,
    OutOfMemory,
    Overloaded,
    QueueFull,
    Unavailable,
    status_of,
)
from fusewire.serving.openai import errors
from fusewire.text.work_queue import WorkQueue
from fusewire.worker_processes.of_threads import ProcessOfEachThread, Reads
from fusewire_client.triton_errors import from_grpc, from_http, from_words

Kind = type[Exception]


def full_queue() -> None:
    Admission(max_sequences=0, max_waiting=0).take(1)


def long_texts_waiting() -> None:
    aside = WorkQueue(most_waiting=0)
    aside.close()
    aside.take(lambda: None, print)


def no_process() -> None:
    reads = Reads("image process", "an image", "send a smaller image")
    ProcessOfEachThread("no.program", {}, reads).call("image", {}, b"", 1.0)


def raised(error: Exception) -> Callable[[], None]:
    def raises() -> None:
        raise error

    return raises


CASES: list[Any] = [
    (raised(InvalidInput("top_k", 0, "1 or more", "raise it")), InvalidInput, "InvalidArgument"),
    (full_queue, QueueFull, "QueueFull"),
    (long_texts_waiting, QueueFull, "QueueFull"),
    (no_process, Unavailable, "Unavailable"),
    (raised(Overloaded("queue: got 3 s of work waiting", 3.0)), Overloaded, "Overloaded"),
    (raised(DeadlineExceeded(TOO_LATE)), DeadlineExceeded, "Expired"),
    (raised(Cancelled(CANCELLED)), Cancelled, "Cancelled"),
    (raised(Unavailable(CLOSED)), Unavailable, "Unavailable"),
    (raised(failure(kernels.OutOfMemory("any words"))), OutOfMemory, "OutOfMemory"),
    (raised(failure(MemoryError())), OutOfMemory, "OutOfMemory"),
    (raised(failure(kernels.DeviceError("out of memory"))), ComputeFailed, "ServerError"),
    (raised(failure(RuntimeError("out of memory"))), ComputeFailed, "ServerError"),
]


@pytest.mark.parametrize(("raises", "kind", "theirs"), CASES)
def test_a_kind_arrives_at_the_client(raises: Callable[[], None], kind: Kind, theirs: str) -> None:
    with pytest.raises(FusewireError) as caught:
        raises()
    error = caught.value
    assert type(error) is kind
    status, words = status_of(type(error)), str(error)
    # As Triton's HTTP endpoint answers its codes; its streams send the words alone.
    over_http = {"INVALID_ARG": 400, "UNAVAILABLE": 503, "INTERNAL": 500, "CANCELLED": 400}[
        status.triton
    ]
    for arrived in (from_grpc(status.grpc, words), from_http(over_http, words), from_words(words)):
        assert type(arrived) is getattr(client, theirs)
        assert str(arrived) == words
        assert errors.of(arrived).status_code == status.http
    assert errors.of(error).status_code == status.http


@pytest.mark.parametrize(
    ("code", "words", "kind", "http"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; ipv4:…", client.NoConnection, 503),
        ("UNAVAILABLE", "Socket closed", client.NoConnection, 503),
        ("INTERNAL", "Stub process 'm_0_0' is not healthy.", client.ModelDied, 503),
        ("CANCELLED", "cancelled: got a cancelled request", client.Cancelled, 503),
        ("NOT_FOUND", "Request for unknown model: 'm' is not found", client.NotFound, 503),
        ("INTERNAL", "anything", client.ServerError, 500),
    ],
)
def test_what_triton_and_grpc_say_themselves(code: str, words: str, kind: Kind, http: int) -> None:
    arrived = from_grpc(code, words)
    assert type(arrived) is kind
    answer = errors.of(arrived)
    assert answer.status_code == http
    assert "ipv4" not in str(answer.body)


def test_each_kind_below_another_is_answered_as_its_own() -> None:
    assert status_of(QueueFull).http == 429
    assert status_of(Unavailable).http == 503
    assert status_of(OutOfMemory) == status_of(FusewireError)
