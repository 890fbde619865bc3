"""Requests as the server hands them over, and clients that keep what they are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fusewire.engine.request import Answer, Request
from fusewire.errors import FusewireError
from fusewire.serving.instance.role import Role

from tests.engine.generating import ANSWER_TIMEOUT_S


class Client:
    """Sends a request, and keeps the answers."""

    def __init__(self, fails: Callable[[], bool] = lambda: False, gone: bool = False) -> None:
        self.answers: list[Answer] = []
        self.ended = threading.Event()
        self.deadline: float | None = None
        self.gone = gone
        self.asked = 0  # how often whether it has left
        self._fails = fails
        self._request: Request | FusewireError

    def asks(self, request: Request | FusewireError) -> Client:
        self._request = request
        return self

    def read(self) -> Request:
        if isinstance(self._request, FusewireError):
            raise self._request
        return self._request

    def cancelled(self) -> bool:
        self.asked += 1
        return self.gone

    def sender(self) -> Client:
        return self

    def send(self, answer: Answer, final: bool) -> None:
        assert not self.ended.is_set()
        if self._fails():
            raise OSError("unreachable")
        self.answers.append(answer)
        if final:
            self.ended.set()

    def text(self) -> str:
        assert self.ended.wait(ANSWER_TIMEOUT_S)
        pieces = [answer["text_output"][0] for answer in self.answers if isinstance(answer, dict)]
        assert len(pieces) == len(self.answers)
        return b"".join(pieces).decode()

    def answer(self) -> Answer:
        assert self.ended.wait(ANSWER_TIMEOUT_S)
        (answer,) = self.answers
        return answer


def take(role: Role, request: Request | FusewireError, client: Client) -> None:
    assert role.execute([client.asks(request)]) == [None]
