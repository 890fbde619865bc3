"""Locust users that embed texts over gRPC and check every answer.

ClosedLoop: each user asks again as soon as it is answered; the load follows the server.
Poisson: requests arrive at random with a given rate, whatever the server does; a response time
counts from the arrival, so a stall is felt by everyone who came meanwhile.

    locust -f tests/load/locustfile.py --headless -u 32 -t 30s --host localhost:8001 ClosedLoop
"""

from __future__ import annotations

import csv
import random
import sys
import time
from pathlib import Path
from typing import Any

# Before the first channel: gRPC's own threads would block every other user of this process.
import grpc.experimental.gevent

grpc.experimental.gevent.init_gevent()

import numpy as np  # noqa: E402
from fusewire_client import Client, ClientError  # noqa: E402
from gevent.pool import Group  # noqa: E402
from locust import User, constant, events, task  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from traffic import texts  # noqa: E402

# A text's vector may differ by its company in the batch by no more than rounding.
LEAST_COSINE = 0.99999


class WrongAnswer(Exception):
    """The server answered, but not what it answers when the text comes alone."""


class Exam:
    """The texts and the vectors they have when each is asked alone, before the load begins."""

    def __init__(self, address: str, model: str | None, count: int, seed: int) -> None:
        self.texts = texts(count, seed)
        with Client(address, model=model, timeout_s=60) as client:
            self.vectors = np.concatenate([client.embed([t], truncate=True) for t in self.texts])
        if not np.isfinite(self.vectors).all() or not self.vectors.any(axis=1).all():
            raise WrongAnswer("the server's own vectors are not finite, or zero")

    def check(self, index: int, vector: np.ndarray) -> None:
        wanted = self.vectors[index]
        if vector.shape != (1, *wanted.shape) or not np.isfinite(vector).all():
            raise WrongAnswer(f"got shape {vector.shape}, wanted {(1, *wanted.shape)}, finite")
        one = vector[0]
        cosine = float(one @ wanted / (np.linalg.norm(one) * np.linalg.norm(wanted)))
        if cosine < LEAST_COSINE:
            raise WrongAnswer(f"cosine {cosine:.6f} with the text's own vector")


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    parser.add_argument("--model", default=None, help="default: the server's only embedder")
    parser.add_argument("--rate", type=float, default=50.0, help="Poisson: requests per second")
    parser.add_argument("--texts", type=int, default=64, help="different texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--request-log", default="", help="CSV file, a line a request")


@events.test_start.add_listener
def prepare(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    environment.exam = Exam(environment.host, options.model, options.texts, options.seed)
    if options.request_log:
        log = Path(options.request_log).open("w", newline="")  # noqa: SIM115  open for the run
        writer = csv.writer(log)
        writer.writerow(["time", "ms", "ok", "error"])

        @events.request.add_listener
        def record(response_time: float, exception: Exception | None, **_: Any) -> None:
            error = f"{type(exception).__name__}: {exception}" if exception else ""
            writer.writerow([time.time(), response_time, int(exception is None), error])

        events.test_stop.add_listener(lambda **_: log.close())


class Embedder(User):
    """One client connection. Retries are off: a request that had to be repeated is a failure."""

    abstract = True
    born = 0

    def on_start(self) -> None:
        options = self.environment.parsed_options
        Embedder.born += 1
        self.random = random.Random(options.seed * 10_007 + Embedder.born)
        self.client = Client(self.host, model=options.model, retries=0, timeout_s=30)

    def on_stop(self) -> None:
        # An open channel keeps the whole process from ending.
        self.client.close()

    def embed(self, arrived: float) -> None:
        exam: Exam = self.environment.exam
        index = self.random.randrange(len(exam.texts))
        error: Exception | None = None
        size = 0
        try:
            vector = self.client.embed([exam.texts[index]], truncate=True)
            size = vector.nbytes
            exam.check(index, vector)
        except (ClientError, WrongAnswer) as caught:
            error = caught
        self.environment.events.request.fire(
            request_type="gRPC",
            name=type(self).__name__,
            response_time=(time.perf_counter() - arrived) * 1e3,
            response_length=size,
            exception=error,
            context={},
        )


class ClosedLoop(Embedder):
    wait_time = constant(0)

    @task
    def ask(self) -> None:
        self.embed(time.perf_counter())


class Poisson(Embedder):
    """The users share the rate; sums of Poisson streams are Poisson."""

    def on_start(self) -> None:
        super().on_start()
        options = self.environment.parsed_options
        self.rate = options.rate / options.num_users
        self.under_way = Group()
        self.arrival: float | None = None

    def on_stop(self) -> None:
        self.under_way.join()
        super().on_stop()

    def wait_time(self) -> float:
        # From arrival to arrival, not from now: a late one does not push the others back.
        assert self.arrival is not None
        self.arrival += self.random.expovariate(self.rate)
        return max(0.0, self.arrival - time.perf_counter())

    @task
    def arrive(self) -> None:
        if self.arrival is None:
            self.arrival = time.perf_counter()  # the clock starts; all users at once would be one
        else:
            # In a greenlet of its own: the next arrival does not wait for this answer.
            self.under_way.spawn(self.embed, self.arrival)
