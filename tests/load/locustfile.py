"""Locust users that embed texts over gRPC and check every answer.

locust -f tests/load/locustfile.py --headless -u 32 -t 30s --host localhost:8001 ClosedLoop
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from arrivals import Asker, ClosedLoopAsker, PoissonAsker, WrongAnswer  # noqa: I001  first: gevent

import numpy as np
from fusewire_client import Client, ClientError
from locust import events
from traffic import texts

# What else is in the batch may change a text's vector by no more than rounding.
LEAST_COSINE = 0.99999


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


@events.init.add_listener  # before the time of the run begins
def prepare(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    environment.exam = Exam(environment.host, options.model, options.texts, options.seed)


class Embedder(Asker):
    """One client connection. Retries are off: a request that had to be repeated is a failure."""

    abstract = True

    def on_start(self) -> None:
        super().on_start()
        self.client = Client(self.host, model=self.options.model, retries=0, timeout_s=30)

    def on_stop(self) -> None:
        # An open channel keeps the whole process from ending.
        self.client.close()

    def ask(self, arrived: float) -> None:
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
        self.report("gRPC", time.perf_counter() - arrived, size, error)


class ClosedLoop(ClosedLoopAsker, Embedder):
    pass


class Poisson(PoissonAsker, Embedder):
    pass
