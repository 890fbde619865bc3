"""The latencies of translations of texts that arrive at random; and CTranslate2, which translates
all waiting texts at once."""

from __future__ import annotations

import json
import tempfile
import time
from collections import deque
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Protocol

import numpy as np

from benchmarks import machine
from benchmarks.arrivals import WARM, Request
from benchmarks.ctranslate2_module import import_ctranslate2
from benchmarks.worker import Handler, Worker


class Policy(Protocol):
    def offer(self, request: Request) -> None: ...

    def listen(self, until: float) -> None: ...

    def stop(self) -> None: ...


class Rival(Worker):
    """CTranslate2 in its own process."""

    def __init__(self, folder: Path, threads: int, beams: int, most: int) -> None:
        super().__init__("ctranslate2", _answering, folder, threads, beams, most)

    def measured(self, offered: list[Request], seconds: float) -> dict[str, Any]:
        return self.ask((offered, seconds))


def _answering(folder: Path, threads: int, beams: int, most: int) -> Handler:
    policy = TranslatingAtOnce(folder, threads, beams, most)

    def answer(question: tuple[list[Request], float]) -> dict[str, Any]:
        offered, seconds = question
        requests_per_s(policy, [Request(0.0, each.prompt, each.new) for each in offered[:most]])
        return measured(policy, offered, seconds)

    return answer


class TranslatingAtOnce:
    """A loop of CTranslate2, from its first text to the end of the process: all waiting texts, at
    most `most`, in one batch, whose translations are as long as the first one's."""

    def __init__(self, folder: Path, threads: int, beams: int, most: int) -> None:
        ct2 = import_ctranslate2()
        with tempfile.TemporaryDirectory() as work:
            ct2.converters.TransformersConverter(str(folder)).convert(f"{work}/model")
            self._words = json.loads(Path(work, "model", "shared_vocabulary.json").read_text())
            self._translator = ct2.Translator(
                f"{work}/model", inter_threads=1, intra_threads=threads, compute_type="float32"
            )
        self._beams, self._most = beams, most
        self._waiting: deque[Request] = deque()
        self._some = Condition()
        Thread(target=self._run, daemon=True).start()

    def offer(self, request: Request) -> None:
        with self._some:
            self._waiting.append(request)
            self._some.notify()

    def listen(self, until: float) -> None:
        time.sleep(max(0.0, until - time.perf_counter()))

    def stop(self) -> None:
        """Stops: waiting texts are dropped, those in progress are finished."""
        with self._some:
            self._waiting.clear()
            while self._busy:
                self._some.wait()

    _busy = False

    def _run(self) -> None:
        while True:
            with self._some:
                self._busy = False
                self._some.notify_all()
                while not self._waiting:
                    self._some.wait()
                self._busy = True
                count = min(self._most, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
            sources = [[self._words[token] for token in request.prompt] for request in batch]
            new = batch[0].new
            found = self._translator.translate_batch(
                sources, beam_size=self._beams, max_decoding_length=new
            )
            now = time.perf_counter()
            for request, each in zip(batch, found, strict=True):
                assert len(each.hypotheses[0]) == request.new == new
                request.times.append(now)
                request.done = True


def requests_per_s(policy: Policy, waiting: list[Request]) -> float:
    """Returns the rate where all texts wait from the beginning, until three quarters are
    translated."""
    began = time.perf_counter()
    for request in waiting:
        request.times.clear()
        request.done = False
        policy.offer(request)
    enough = len(waiting) * 3 // 4
    while (done := sum(request.done for request in waiting)) < enough:
        policy.listen(time.perf_counter() + 0.002)
    taken = time.perf_counter() - began
    policy.stop()
    return done / taken


def measured(policy: Policy, offered: list[Request], seconds: float) -> dict[str, Any]:
    """Offers each request at its time and returns the statistics of those after the warm-up. Ends
    after `seconds`, however many requests still wait. `ms_per_token`: the time from a text's
    arrival to its translation, over the length of the translation (normalized latency; Yu et al.
    2022, "Orca", section 6)."""
    watch, began = machine.Watch(), time.perf_counter()
    for request in offered:
        policy.listen(began + request.at)
        policy.offer(request)
    policy.listen(began + seconds)
    end = time.perf_counter()
    ended = [request for request in offered if request.done and request.times[-1] <= end]
    policy.stop()
    begin = began + WARM * seconds
    counted = [request for request in offered if began + request.at >= begin]
    done = {id(request) for request in ended}
    waits = [
        (request.times[-1] if id(request) in done else end) - began - request.at
        for request in counted
    ]
    by_token = [wait / request.new for wait, request in zip(waits, counted, strict=True)]
    tokens = sum(request.new for request in ended if request.times[-1] >= begin)
    return {
        "requests": len(counted),
        "without_answer": sum(id(request) not in done for request in counted),
        "tokens_per_s": round(tokens / (end - begin), 1),
        **_percentiles("answer_ms", waits),
        **_percentiles("ms_per_token", by_token),
        "disturbed": watch.disturbed(),
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {f"{name}_p{q}": round(float(np.percentile(seconds, q)) * 1e3, 2) for q in (50, 99)}
