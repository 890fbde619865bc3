"""Locust users that embed texts of mixed lengths, each as soon as its last request was answered.

    pip install ./client 'locust>=2.40'
    fusewire serve MODEL
    locust -f examples/load_test.py --headless -u 16 -t 30s --host localhost:8001

--host is the server's gRPC address. tests/load has open-loop arrivals and checks every answer.
"""

from __future__ import annotations

import random
import time

# Before the first channel: gRPC's own threads would block all other users of this process.
import grpc.experimental.gevent

grpc.experimental.gevent.init_gevent()

from fusewire_client import Client, ClientError  # noqa: E402
from locust import User, constant, task  # noqa: E402

WORDS = ("a", "cat", "sleeps", "on", "the", "sofa", "while", "rockets", "rise")


class Embedder(User):
    wait_time = constant(0)

    def on_start(self) -> None:
        self.client = Client(self.host, retries=0, timeout_s=30)

    def on_stop(self) -> None:
        self.client.close()

    @task
    def embed(self) -> None:
        text = " ".join(random.choices(WORDS, k=random.randint(3, 100)))
        error: Exception | None = None
        began = time.perf_counter()
        try:
            self.client.embed([text], truncate=True)
        except ClientError as caught:
            error = caught
        self.environment.events.request.fire(
            request_type="gRPC",
            name="embed",
            response_time=(time.perf_counter() - began) * 1e3,
            response_length=len(text),
            exception=error,
            context={},
        )
