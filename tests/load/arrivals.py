"""How requests of Locust users arrive, and what every run has: its options and its request log.

A closed loop asks again as soon as it is answered, so the load follows the server. With Poisson
arrivals requests come at random with a given rate, whatever the server does; a response time counts
from the arrival, so a stall is felt by everyone who came meanwhile.
"""

from __future__ import annotations

import csv
import random
import time
from pathlib import Path
from typing import Any

# Before the first channel: gRPC's own threads would block every other user of this process.
import grpc.experimental.gevent

grpc.experimental.gevent.init_gevent()

from gevent.pool import Group  # noqa: E402
from locust import User, constant, events, task  # noqa: E402


class WrongAnswer(Exception):
    """The server answered, but not what it answers when the request comes alone."""


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    parser.add_argument("--model", default=None, help="default: the only one of its kind")
    parser.add_argument("--rate", type=float, default=50.0, help="Poisson: requests per second")
    parser.add_argument("--texts", type=int, default=64, help="different texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--request-log", default="", help="CSV file, a line a request")


@events.test_start.add_listener
def open_log(environment: Any, **_: Any) -> None:
    if not environment.parsed_options.request_log:
        return
    path = Path(environment.parsed_options.request_log)
    log = path.open("w", newline="", buffering=1)  # read while the run goes on
    writer = csv.writer(log)
    writer.writerow(["time", "type", "ms", "ok", "error"])

    @events.request.add_listener
    def record(
        request_type: str, response_time: float, exception: Exception | None, **_: Any
    ) -> None:
        error = f"{type(exception).__name__}: {exception}" if exception else ""
        writer.writerow([time.time(), request_type, response_time, int(exception is None), error])

    events.test_stop.add_listener(lambda **_: log.close())


class Asker(User):
    """Has a random generator of its own. `ask` sends one request that arrived at `arrived`
    (`time.perf_counter`) and reports it."""

    abstract = True
    born = 0

    def on_start(self) -> None:
        Asker.born += 1
        self.random = random.Random(self.options.seed * 10_007 + Asker.born)

    @property
    def options(self) -> Any:
        return self.environment.parsed_options

    def ask(self, arrived: float) -> None:
        raise NotImplementedError

    def report(
        self, request_type: str, seconds: float, size: int = 0, error: Exception | None = None
    ) -> None:
        self.environment.events.request.fire(
            request_type=request_type,
            name=type(self).__name__,
            response_time=seconds * 1e3,
            response_length=size,
            exception=error,
            context={},
        )


class ClosedLoopAsker(Asker):
    abstract = True
    wait_time = constant(0)

    @task
    def ask_again(self) -> None:
        self.ask(time.perf_counter())


class PoissonAsker(Asker):
    """The users share the rate; sums of Poisson streams are Poisson."""

    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self.rate = self.options.rate / self.options.num_users
        self.in_flight = Group()
        self.arrival: float | None = None

    def on_stop(self) -> None:
        self.in_flight.join()
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
            self.in_flight.spawn(self.ask, self.arrival)
