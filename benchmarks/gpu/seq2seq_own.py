"""Our side of translation with beam search: whole requests to the engine, the host's time of its
steps by part, and the device's work of a single step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import numpy as np
from fusewire import kernels
from fusewire.engine import generation_loop
from fusewire.engine.beam_candidates import BeamCandidates
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.sampling_rows import SamplingRows
from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.sampling_state import SamplingState
from fusewire.generation.parameters import GenerationParameters
from fusewire.models.step_batch import StepBatch

from benchmarks.gpu.generation_own import greedy_draws
from benchmarks.gpu.own import launches, torch_stream
from benchmarks.gpu.seq2seq_workload import Case
from benchmarks.gpu.timing import Contender


@dataclass
class Steps:
    """A record of an engine's steps: when each began, its seconds by part (nested parts counted
    once), and the arguments of the model and of the cache's copies."""

    begins: list[float] = field(default_factory=list)
    parts: list[Counter[str]] = field(default_factory=list)
    batches: list[StepBatch] = field(default_factory=list)
    copies: list[tuple[list[int], list[int], int]] = field(default_factory=list)

    @property
    def decoding(self) -> range:
        """The range of steps with one token per row: after the prompt's, before the last, which
        answers."""
        return range(1, len(self.begins) - 1)

    def step_ms(self) -> float:
        """Returns the median time from one step to the next while all beams run."""
        gaps = [later - earlier for earlier, later in pairwise(self.begins)]
        return median(gaps[1:]) * 1e3

    def host_us(self) -> dict[str, float]:
        """Returns medians over these steps, by part; `device_wait` is the time that the host
        waited."""
        names = {name: None for step in self.decoding for name in self.parts[step]}
        return {
            name: round(median(self.parts[step][name] for step in self.decoding) * 1e6, 1)
            for name in names
        }

    def middle(self) -> StepBatch:
        return self.batches[len(self.batches) // 2]

    def middle_copies(self) -> tuple[list[int], list[int], int]:
        """Returns the copies of the step with the median number of copied positions, and the
        positions per page."""
        found = sorted(self.copies[1:], key=lambda copies: len(copies[0]) * copies[2])
        return found[len(found) // 2] if found else ([], [], 0)

    def mean_copies(self) -> float:
        return mean(len(sources) for sources, _, _ in self.copies) if self.copies else 0.0


@contextmanager
def watched(engine: GenerationEngine) -> Iterator[Steps]:
    """Records the steps of an engine within the context; the overhead is a microsecond per part."""
    steps, running = Steps(), []
    loop, model = engine._loop, engine.model
    groups, memory, answers = loop._beam_groups, loop._cache, loop._search_answers

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            began, inner = time.perf_counter(), [0.0]
            running.append(inner)
            try:
                return call(*arguments, **named)
            finally:
                seconds = time.perf_counter() - began
                running.pop()
                steps.parts[-1][name] += seconds - inner[0]
                if running:
                    running[-1][0] += seconds

        return wrapped

    def step(now: float) -> None:
        steps.begins.append(time.perf_counter())
        steps.parts.append(Counter())
        whole(now)

    def model_step(batch: StepBatch, cache: Any) -> kernels.Tensor:
        steps.batches.append(batch)
        return run(batch, cache)

    def copy_pages(source: Sequence[int], destination: Sequence[int], positions: int) -> None:
        steps.copies.append((list(source), list(destination), positions))
        copy(source, destination, positions)

    def method(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        found = timed(name, of)
        return lambda *arguments, **named: found(*arguments, **named)

    whole, run = timed("other", loop.step), timed("launch", model.step)
    copy = timed("page copies", memory.copy_pages)
    with ExitStack() as stack:
        for where, what, new in (
            (loop, "step", step),
            (model, "step", model_step),
            (memory, "copy_pages", copy_pages),
            (model, "encode", timed("encode", model.encode)),  # type: ignore[attr-defined]
            (loop.scheduler, "plan", timed("schedule", loop.scheduler.plan)),
            (loop.scheduler, "done", timed("schedule", loop.scheduler.done)),
            (generation_loop, "pack", timed("pack", generation_loop.pack)),
            (groups, "finish", timed("bookkeeping", groups.finish)),
            (groups, "begin_ahead", timed("forks", groups.begin_ahead)),
            (BeamCandidates, "begin_there", method("candidates", BeamCandidates.begin_there)),
            (groups._forks, "fork", timed("forks", groups._forks.fork)),
            (loop._sampler, "begin", timed("draws", loop._sampler.begin)),
            (kernels.Readback, "wait", method("device_wait", kernels.Readback.wait)),
            (answers, "_end", timed("answers", answers._end)),
            (answers, "_tell", timed("answers", answers._tell)),
            (model.place, "numpy", timed("device_wait", model.place.numpy)),
        ):
            stack.enter_context(patch.object(where, what, new))
        yield steps


@contextmanager
def reading_first(engine: GenerationEngine) -> Iterator[None]:
    """Begins no step before the previous one was read, so that the host knows all of its tokens."""
    with patch.object(engine._loop, "_look_ahead", None):
        yield


class DeviceStep:
    """A step of an idle engine, in the middle of the texts, with its inputs on the device: the
    model's step, the candidates of all groups, the page copies."""

    def __init__(self, engine: GenerationEngine, steps: Steps, case: Case) -> None:
        self._loop, self._model = engine._loop, engine.model
        self._batch, self._case = steps.middle(), case
        place, cache = self._model.place, self._loop._cache
        self.stream = torch_stream(place.stream)
        self._logits = self._model.step(self._batch, cache)
        self._graph = self._recording()
        self._parts = [self._choices()]
        sources, destinations, positions = steps.middle_copies()
        self.copies = len(sources)
        if sources:
            both = place.exact(np.array([sources, destinations], np.int64).reshape(-1), np.int64)
            begin, end = (
                both.section(8 * self.copies * at, [self.copies], "int64") for at in (0, 1)
            )
            copy = partial(cache.copy, begin, end, positions)
            self._parts.append(launches("page copies", place.stream, [copy]))

    @property
    def replayed(self) -> bool:
        return self._graph is not None

    def contenders(self) -> list[Contender]:
        """Returns the whole step, and the part of beam search alone."""

        def beams() -> None:
            for part in self._parts:
                part.run()

        def everything() -> None:
            self._step()
            beams()

        return [
            Contender("step", everything, self.stream),
            Contender("beams", beams, self.stream),
        ]

    def _step(self) -> None:
        if self._graph is None:
            self._model.step(self._batch, self._loop._cache)
        else:
            self._graph.replay(self._model.place.stream)

    def _choices(self) -> Contender:
        """Returns greedy sampling, or the candidates of searches in the middle of their texts."""
        case, place = self._case, self._model.place
        if case.beams == 1:
            greedy = GenerationParameters(ignore_eos=True)
            rules = SamplingRules(greedy)
            rows = SamplingRows([SamplingState(rules, [0]) for _ in range(case.batch)])
            return greedy_draws(self._model, self._logits, rows)
        count = 2 * case.beams
        offsets = np.arange(case.batch + 1, dtype=np.int32) * case.beams
        scores = np.random.default_rng(0).normal(-20.0, 0.1, case.rows).astype(np.float32)
        counts = np.full(case.batch, count, np.int32)
        given = [place.exact(each, each.dtype) for each in (offsets, counts, scores)]
        out = [
            place.empty(case.batch, count, dtype=dtype)
            for dtype in ("float32", "float32", "int32", "int32")
        ]
        find = partial(kernels.beam_candidates, *out, self._logits, *given, False, place.stream)
        return launches("candidates", place.stream, [find])

    def _recording(self) -> kernels.Graph | None:
        replays = self._model._replays
        bucket = None if replays is None else replays.bucket(self._batch)
        found = None if replays is None or bucket is None else replays.recorded.get(bucket)
        return None if found is None else found[1]
