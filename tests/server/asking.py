"""Short ways to ask a server, alone, together, and without pause."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from fusewire.serving.supervisor.server import Server
from tritonclient.utils import InferenceServerException

from tests import tolerance

Inputs = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]
# For what takes no time on an idle machine: a server that gives no answer at all is ended by then.
PATIENCE_S = 120.0
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "object": "BYTES"}


def texts(*values: str | bytes) -> Inputs:
    encoded = [[v.encode() if isinstance(v, str) else v] for v in values]
    return {"text_input": np.array(encoded, object).reshape(len(values), 1)}


def ids(*rows: Sequence[int], **others: Any) -> Inputs:
    inputs = {"input_ids": np.array(rows, np.int64)}
    return inputs | {name: np.array(value, np.int64) for name, value in others.items()}


def same(device: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """The answers to one request, whatever it was batched with."""
    on_cpu, on_gpu = tolerance.BATCHED_VERSUS_ALONE, tolerance.GPU_BATCHED_VERSUS_ALONE
    limit = on_cpu if device == "cpu" else on_gpu
    np.testing.assert_allclose(got, wanted, rtol=0, atol=limit)


class Asker:
    """A gRPC client of one server; threads may share it."""

    def __init__(self, server: Server, device: str = "cpu") -> None:
        """`device`: where the server's models compute."""
        self.server = server
        self.device = device
        at = server.endpoint
        self.client = triton.InferenceServerClient(f"{at.reachable}:{at.grpc_port}")

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def ask(
        self,
        model: str,
        inputs: Inputs,
        version: str = "",
        parameters: dict[str, Any] | None = None,
        outputs: Sequence[str] = (),
        timeout_s: float = PATIENCE_S,
    ) -> Outputs:
        """One request; InferenceServerException for an error answer."""
        result = self.client.infer(
            model,
            _inputs(inputs),
            model_version=version,
            outputs=[triton.InferRequestedOutput(name) for name in outputs] or None,
            parameters=parameters,
            client_timeout=timeout_s,
        )
        return _outputs(result)

    def same(self, got: np.ndarray, wanted: np.ndarray) -> None:
        same(self.device, got, wanted)

    def together(self, model: str, requests: Sequence[Inputs]) -> list[Outputs | Exception]:
        """Requests sent at once; their answers, or errors, in order."""
        done: queue.SimpleQueue[tuple[int, Outputs | Exception]] = queue.SimpleQueue()
        for index, inputs in enumerate(requests):

            def arrived(result: Any, error: Any, index: int = index) -> None:
                done.put((index, error if error is not None else _outputs(result)))

            self.client.async_infer(model, _inputs(inputs), arrived, client_timeout=PATIENCE_S)
        answers = dict(done.get(timeout=PATIENCE_S + 30) for _ in requests)
        return [answers[index] for index in range(len(requests))]

    def sharing(
        self, model: str, requests: Sequence[Inputs], most: int
    ) -> tuple[list[Outputs | Exception], int]:
        """The answers of requests that took at most so many executions, and how often they were
        sent for it: where the machine is busy, they come too late for each other."""
        found: list[list[Outputs | Exception]] = []

        def shared() -> bool:
            before, _ = self.executions(model)
            found.append(self.together(model, requests))
            return self.executions(model)[0] - before <= most

        until(shared)
        return found[-1], len(found)

    def executions(self, model: str) -> tuple[int, dict[int, int]]:
        """(executions, batch size -> executions of that size) since the model was loaded."""
        found = self.server.endpoint.call(f"models/{model}/stats", timeout_s=PATIENCE_S)
        (row,) = found["model_stats"]
        sizes = {int(b["batch_size"]): int(b["compute_infer"]["count"]) for b in row["batch_stats"]}
        return int(row["execution_count"]), sizes

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; the sum where several series fit."""
        total = 0.0
        for line in self.server.endpoint.metrics(PATIENCE_S).splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total


@dataclass
class Traffic:
    """Threads that ask one model without pause; every answer is looked at."""

    asker: Asker
    model: str
    inputs: Inputs
    threads: int = 2
    answers: int = 0
    errors: list[tuple[float, str]] = field(default_factory=list)
    slowest_s: float = 0.0

    def __enter__(self) -> Traffic:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._running = [threading.Thread(target=self._ask) for _ in range(self.threads)]
        for thread in self._running:
            thread.start()
        self.more(5)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._running:
            thread.join()

    def more(self, count: int) -> None:
        """Returns after `count` more good answers."""
        wanted, deadline = self.answers + count, time.monotonic() + PATIENCE_S
        while self.answers < wanted:
            assert time.monotonic() < deadline, self.errors[-3:]
            time.sleep(0.005)

    def _ask(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self.asker.ask(self.model, self.inputs)
            except InferenceServerException as error:
                with self._lock:
                    self.errors.append((time.monotonic(), str(error)))
                time.sleep(0.01)
            else:
                with self._lock:
                    self.answers += 1
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)


def until(true: Any, seconds: float = PATIENCE_S) -> None:
    """Waits until `true()`; fails after `seconds`, many times what anything takes."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their stderr to the file."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _inputs(inputs: Inputs) -> list[triton.InferInput]:
    made = []
    for name, array in inputs.items():
        tensor = triton.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def _outputs(result: Any) -> Outputs:
    return {o.name: result.as_numpy(o.name) for o in result.get_response().outputs}
