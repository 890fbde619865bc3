"""What passes between a worker and its owner arrives whole, or is known to be broken."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fusewire.errors import CheckpointError, FusewireError, InvalidInput, Overloaded, QueueFull
from fusewire.passed_errors import as_values, error_of
from fusewire.worker_processes import messages
from fusewire.worker_processes.messages import BrokenMessage, encoded, receive

SOON_S = 0.05


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "message",
    [{}, {"a": [1, 2.5, None, True, "é🙂"]}, {"half": "\ud800"}, {"long": "x" * 5_000_000}],
)
def test_a_message_arrives_as_it_was_sent(ends: Any, message: dict[str, Any]) -> None:
    ours, theirs = ends
    sending = threading.Thread(target=ours.sendall, args=(encoded(message),))
    sending.start()
    assert receive(theirs, time.monotonic() + 30) == message
    sending.join()


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_bytes_behind_a_message_arrive_with_it(ends: Any, size: int) -> None:
    ours, theirs = ends
    body = np.random.default_rng(0).bytes(size)
    data = encoded({"a": 1, "body_bytes": size}) + body + encoded({"next": 2})
    sending = threading.Thread(target=ours.sendall, args=(data,))
    sending.start()
    message = receive(theirs, time.monotonic() + 30)
    assert message.pop("body").tobytes() == body
    assert message == {"a": 1}
    assert receive(theirs, time.monotonic() + 30) == {"next": 2}
    sending.join()


def test_a_body_is_no_larger_than_its_reader_expects(ends: Any) -> None:
    ours, theirs = ends
    ours.sendall(encoded({"body_bytes": 5}) + b"abcde" + encoded({"body_bytes": 6}))
    assert receive(theirs, None, 5)["body"].tobytes() == b"abcde"
    with pytest.raises(BrokenMessage, match="a body of 6 bytes"):
        receive(theirs, None, 5)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (encoded({"body_bytes": -1}), "a body of -1 bytes"),
        (encoded({"body_bytes": 1 << 40}), "a body of 1099511627776 bytes"),
        (encoded({"body_bytes": "1"}), "a body of 1 bytes"),
        (encoded({"body_bytes": 2}) + b"x", "end of the connection"),
        (b"", "end of the connection"),
        (b"\0\0", "end of the connection"),
        (encoded({"a": "some text"})[:-3], "end of the connection"),
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (b"\0\0\0\5hello", "not JSON"),
        (b"\0\0\0\2\xff\xff", "not JSON"),
        ((100_000).to_bytes(4, "big") + b"[" * 100_000, "not JSON"),
    ],
    ids=[
        "a negative body",
        "a huge body",
        "a body of text",
        "half a body",
        "nothing",
        "half a length",
        "half a message",
        "huge",
        "text",
        "bytes",
        "deep",
    ],
)
def test_what_is_no_message_is_known(ends: Any, data: bytes, words: str) -> None:
    ours, theirs = ends
    ours.sendall(data)
    ours.close()
    with pytest.raises(BrokenMessage, match=words):
        receive(theirs, time.monotonic() + 30)


@pytest.mark.parametrize("data", [b"", encoded({"a": 1})[:-1]])
def test_a_message_is_waited_for_until_its_deadline(ends: Any, data: bytes) -> None:
    ours, theirs = ends
    ours.sendall(data)
    with pytest.raises(TimeoutError):
        receive(theirs, time.monotonic() + SOON_S)


def test_a_length_alone_takes_no_memory(ends: Any) -> None:
    ours, theirs = ends
    ours.sendall(messages.MOST_BYTES.to_bytes(4, "big"))
    ours.close()
    with pytest.raises(BrokenMessage, match="end of the connection"):
        receive(theirs)


class OfOurs(FusewireError):
    """A kind that the other end does not know."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("prompt", "1", "2", "correct it"), InvalidInput),
        (CheckpointError("x: broken"), CheckpointError),
        (QueueFull("queue: got 9"), QueueFull),
        (Overloaded("queue: got 9 s", 2.5), Overloaded),
        (OfOurs("words"), FusewireError),
    ],
)
def test_an_error_keeps_its_kind_and_words(error: FusewireError, kind: type[Exception]) -> None:
    again = error_of(as_values(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
