"""The host's time of a generation step, without the model: `python -m benchmarks.host_step`.

A GPT-2 with almost no computation (one layer, width 16, 257 tokens, random weights) on one thread
of a CPU generates several sequences after prompts of 8 tokens: greedily, sampled with penalties,
with listeners for the whole text only and for each token; and with searches of 4 beams. Measured
are the CPU seconds of the engine's thread in each step in which all sequences take one token, split
into kernels (`device`) and the rest (`host`), and those of the reader's thread. Values are medians
over steps, the minimum over the rounds, in which the cases take turns.

Writes bench-results/host_step.jsonl, one JSON object per row.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from fusewire import kernels
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.generation.request import GenerationRequest

from benchmarks import machine, records
from tests.engine.generating import byte_tokenizer

PROMPT_TOKENS = 8
# Functions of `kernels` that a GPU would run asynchronously.
DEVICE = (
    "beam_candidates",
    "bias_logits",
    "copy_pages",
    "gather_columns",
    "gather_rows",
    "linear",
    "log_softmax",
    "log_sum_exp",
    "penalize",
    "rank_columns",
    "sample",
)
PENALTIES = {
    "temperature": 0.9,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "seed": 1,
}


@dataclass(frozen=True)
class Case:
    """Requests that run together, and how their answers are read."""

    sequences: int
    parameters: dict[str, Any] = field(default_factory=dict)
    reads: bool = False  # a thread reads each token of all sequences
    # The arguments of GenerationRequest for its listeners.
    listens: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The rows of a step."""
        return self.sequences * self.parameters.get("num_beams", 1)


def cases() -> dict[str, Case]:
    whole, ids = {"tells": "text"}, {"tells": "ids"}
    found = {}
    for count in (1, 64, 256):
        found |= {
            f"{count} greedy, ids": Case(count, listens=ids),
            f"{count} greedy, whole text": Case(count, listens=whole),
            f"{count} sampled with penalties, ids": Case(count, PENALTIES, listens=ids),
            f"{count} streamed text": Case(count, reads=True),
        }
    found["32 searches of 4 beams"] = Case(32, {"num_beams": 4}, listens=ids)
    found["1 search of 4 beams"] = Case(1, {"num_beams": 4}, listens=ids)
    return found


@dataclass
class Seconds:
    """CPU seconds of the engine's thread in each full step, and of the reader over all of them."""

    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    readers: float = 0.0


class Watched:
    """An engine whose full steps are timed."""

    def __init__(self, engine: GenerationEngine) -> None:
        self.engine = engine
        self.seconds = Seconds()
        self.rows = 0  # of a full step
        self._device_s = 0.0
        self._full = False
        self._rng = np.random.default_rng(0)  # no prompt is repeated
        self._step, engine._loop.step = engine._loop.step, self._timed  # type: ignore[method-assign]
        self._run, engine.model.step = engine.model.step, self._seen  # type: ignore[method-assign]
        for holder, name in [(engine.model._stack, "forward_cached"), *product([kernels], DEVICE)]:
            setattr(holder, name, self._counted(getattr(holder, name)))

    def _timed(self, now: float) -> None:
        self._full, self._device_s = False, 0.0
        began = time.thread_time()
        self._step(now)
        took = time.thread_time() - began
        if self._full:
            self.seconds.host.append(took - self._device_s)
            self.seconds.device.append(self._device_s)

    def _seen(self, tokens: Any, cache: Any) -> Any:
        self._full = tokens.tokens == tokens.sequences == self.rows
        return self._run(tokens, cache)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            # Called often in a step, and a thread's CPU clock is slow to read.
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self._device_s += time.perf_counter() - began

        return counted

    def run(self, case: Case, new_tokens: int) -> Seconds:
        """Runs the case; all requests are submitted before the first step."""
        engine, self.rows, self.seconds = self.engine, case.rows, Seconds()
        parameters = engine.parameters(
            max_new_tokens=new_tokens, ignore_eos=True, **case.parameters
        )
        go, ended = threading.Event(), threading.Event()
        engine._thread._asked.put(go.wait)  # type: ignore[arg-type]
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        left = case.sequences

        def on_event(delta: Any) -> None:
            nonlocal left
            left -= delta.finish_reason is not None
            if not left:
                ended.set()

        for _ in range(case.sequences):
            prompt = self._rng.integers(0, 256, PROMPT_TOKENS).tolist()
            request = GenerationRequest(prompt, parameters, **case.listens)
            engine.submit(request, None, events.put if case.reads else on_event)
        engine._thread._asked.put(lambda: None)
        go.set()
        began = time.thread_time()
        if case.reads:
            while left:
                on_event(events.get())
        else:
            ended.wait()
        self.seconds.readers = time.thread_time() - began
        return self.seconds


def folder_of(root: Path, positions: int) -> Path:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257, n_positions=positions, n_embd=16, n_layer=1, n_head=1, eos_token_id=256
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(root)
    byte_tokenizer(root)
    return root


def measured(seconds: Seconds, rows: int) -> dict[str, float]:
    """Returns the microseconds of a step and of each of its rows."""
    readers = seconds.readers / max(1, len(seconds.host))
    found = {"host": median(seconds.host), "device": median(seconds.device), "readers": readers}
    of_step = {f"{name}_us_per_step": 1e6 * value for name, value in found.items()}
    of_row = {f"{name}_us_per_row": 1e6 * value / rows for name, value in found.items()}
    return of_step | of_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=list(cases()), default=list(cases()))
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    options = parser.parse_args()
    positions = PROMPT_TOKENS + options.new_tokens
    settings = GenerationSettings(
        max_sequences=256,
        max_waiting=256,
        max_length=positions,
        threads=1,
    )
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = folder_of(Path(work), positions)
        with GenerationEngine(folder, settings) as engine:
            watched = Watched(engine)
            machine.settle()
            for _ in range(options.rounds):
                for name in options.cases:
                    case = cases()[name]
                    found = measured(watched.run(case, options.new_tokens), case.rows)
                    least = best.setdefault(name, found)
                    best[name] = {key: min(value, found[key]) for key, value in least.items()}
    facts = {"benchmark": "host_step", "new_tokens": options.new_tokens, **machine.facts()}
    rows = [
        facts | {"case": name} | {key: round(value, 3) for key, value in found.items()}
        for name, found in best.items()
    ]
    records.append(options.out / "host_step.jsonl", rows)
    for name, found in best.items():
        print(
            f"{name:36} host {found['host_us_per_step']:8.1f} us a step, "
            f"{found['host_us_per_row']:6.2f} a row, readers {found['readers_us_per_row']:5.2f}, "
            f"device {found['device_us_per_step']:7.1f} a step"
        )
    print(f"rows added to {options.out / 'host_step.jsonl'}")


if __name__ == "__main__":
    main()
