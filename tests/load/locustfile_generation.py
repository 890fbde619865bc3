"""Locust users that stream generated text and check every answer.

Each stream is reported three times: as a whole (type gRPC or HTTP), the time to its first piece
(`first token`, from the arrival), and the mean time between its tokens after that (`inter-token`: a
response may hold several tokens, so gaps between responses are not gaps between tokens).

    locust -f tests/load/locustfile_generation.py --headless -u 8 -t 30s --host localhost:8001 \
        ClosedLoopStreams

OpenAIStreams wants the address of OpenAI's endpoint as --host.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from arrivals import Asker, ClosedLoopAsker, PoissonAsker, WrongAnswer  # noqa: I001  first: gevent

from locust import events
from streams import GrpcStreams, OpenAIStreams as OpenAIConnection, StreamFailed, Streams
from traffic import texts

LONGEST_PROMPT = 40  # words


class Exam:
    """Prompts, and the greedy text that each has when it is asked alone, before the load begins."""

    def __init__(self, streams: Streams, options: Any) -> None:
        self.prompts = texts(options.texts, options.seed, LONGEST_PROMPT)
        self.new_tokens: int = options.new_tokens
        self._any_text: bool = options.any_text
        self._texts = ["".join(streams.pieces(each, self.new_tokens)) for each in self.prompts]
        if not all(self._texts):
            raise WrongAnswer("the server's own texts: got an empty one")

    def check(self, index: int, text: str) -> None:
        if not text or (text != self._texts[index] and not self._any_text):
            raise WrongAnswer(f"got {text[:40]!r}…, expected {self._texts[index][:40]!r}…")


def several(given: str) -> int:
    """At least 2: there is no time between the tokens of fewer."""
    if not given.isdecimal() or int(given) < 2:
        raise ArgumentTypeError(f"got {given}, expected an integer of at least 2")
    return int(given)


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    parser.add_argument("--new-tokens", type=several, default=32, help="of each stream")
    parser.add_argument(
        "--any-text",
        action="store_true",
        help="accept other greedy texts too, as a GPU's rounding may choose in another batch",
    )


@events.init.add_listener  # before the time of the run begins
def prepare(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    streams = environment.user_classes[0].connect(environment.host, options.model)
    try:
        environment.exam = Exam(streams, options)
    finally:
        streams.close()


class Reader(Asker):
    """One connection."""

    abstract = True
    connect: type[Streams] = GrpcStreams

    def on_start(self) -> None:
        super().on_start()
        self.streams = self.connect(self.host, self.options.model)

    def on_stop(self) -> None:
        # An open channel keeps the whole process from ending.
        self.streams.close()

    def ask(self, arrived: float) -> None:
        exam: Exam = self.environment.exam
        index = self.random.randrange(len(exam.prompts))
        found, times = [], []
        error: Exception | None = None
        try:
            for piece in self.streams.pieces(exam.prompts[index], exam.new_tokens):
                times.append(time.perf_counter())
                found.append(piece)
            exam.check(index, "".join(found))
        except (StreamFailed, WrongAnswer) as caught:
            error = caught
        size = len("".join(found).encode())
        self.report(self.streams.request_type, time.perf_counter() - arrived, size, error)
        if error is None:
            self.report("first token", times[0] - arrived)
            if len(times) > 1:
                self.report("inter-token", (times[-1] - times[0]) / (exam.new_tokens - 1))


class ClosedLoopStreams(ClosedLoopAsker, Reader):
    pass


class PoissonStreams(PoissonAsker, Reader):
    pass


class OpenAIStreams(ClosedLoopAsker, Reader):
    connect = OpenAIConnection
