"""One instance of a model that encodes: requests in, answers out.

A request with long texts is answered later, by its own sender, so that those that came with it and
after it do not wait until its texts are tokenised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum

from fusewire.engine.encoder import EncoderEngine
from fusewire.engine.request import CLOSED, Answer, Counts, Request, failure
from fusewire.errors import FusewireError, Unavailable
from fusewire.serving.aside import LONG, Aside
from fusewire.serving.conversation import Sender
from fusewire.serving.metrics import ServingMetrics


class Later(Enum):
    """A placeholder for an answer that is sent later."""

    LATER = 0


class Encoding:
    """Answers requests by an encoder engine, until closed."""

    def __init__(self, engine: EncoderEngine, metrics: ServingMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._aside = Aside()
        self._lock = threading.Lock()  # over what computes
        self._closed = False

    def answer(
        self, requests: Sequence[Request | FusewireError], sender: Callable[[int], Sender]
    ) -> list[Answer | Later]:
        """Answers in the order of `requests`, in the place of which an error stands where one could
        not be read. `sender`: of a request, by its place."""
        answers: list[Answer | Later] = []
        now: list[tuple[int, Request]] = []
        for place, request in enumerate(requests):
            answers.append(request if isinstance(request, FusewireError) else None)
            if isinstance(request, Request):
                if request.characters > LONG:
                    answers[place] = self._later(request, sender(place))
                else:
                    now.append((place, request))
        with self._lock:
            computed = self._engine.answer([request for _, request in now])
            counts = self._engine.last_counts
        for (place, _), answer in zip(now, computed, strict=True):
            answers[place] = answer
        self._metrics.record([each for each in answers if each is not Later.LATER], counts)
        return answers

    def close(self) -> None:
        """Waits a while for long texts; what remains is not computed."""
        self._aside.close()
        with self._lock:
            self._closed = True
        self._metrics.close()

    def _later(self, request: Request, sender: Sender) -> Later | Unavailable:
        request.cancelled = sender.cancelled
        try:
            self._aside.take(lambda: self._answer(request, sender))
        except Unavailable as full:
            return full
        return Later.LATER

    def _answer(self, request: Request, sender: Sender) -> None:
        answer: Answer
        try:
            self._engine.prepare(request)
            with self._lock:
                if self._closed:
                    raise Unavailable(CLOSED)
                (answer,) = self._engine.answer([request])
                counts = self._engine.last_counts
        except Exception as error:
            answer, counts = failure(error), Counts()
        self._metrics.record([answer], counts)
        sender.send(answer, True)
