"""Our side of generation: steps and prompts as the engine runs them, the launches of a step alone,
and the engine itself."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fusewire import kernels
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_memory import PAGE_SIZE
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.sampling import Sampler
from fusewire.engine.sampling_rows import SamplingRows
from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.sampling_state import SamplingState
from fusewire.errors import FusewireError
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.request import GenerationRequest
from fusewire.models.decoder import DecoderModel
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.step_batch import StepBatch
from torch import Tensor

from benchmarks.gpu.generation_models import Past, tokenizer_folder
from benchmarks.gpu.generation_workload import Case
from benchmarks.gpu.own import launches, torch_stream
from benchmarks.gpu.timing import Contender


class Pages:
    """A KV cache with room for a case; its pages are assigned in random order."""

    def __init__(self, model: DecoderModel, case: Case) -> None:
        each = -(-case.context // PAGE_SIZE)
        self.model, self.case = model, case
        self.cache = model.new_cache(case.batch * each, PAGE_SIZE)
        order = np.random.default_rng(0).permutation(case.batch * each)
        self.table = order.reshape(case.batch, each).astype(np.int32)

    def fill(self, past: Past) -> None:
        """Writes the keys and values of the past to the pages of the page table."""
        order = torch.from_numpy(self.table.reshape(-1).astype(np.int64))
        planes = torch.from_dlpack(self.cache.planes).unflatten(0, (-1, 2))
        for index, pair in enumerate(planes):
            for plane, source in zip(pair, past.layer(index), strict=True):
                paged = source.unflatten(2, (-1, PAGE_SIZE)).transpose(1, 2).flatten(2)
                if plane.dtype == torch.uint8:
                    paged = paged.to(torch.float8_e4m3fn).view(torch.uint8)
                plane[order.to(source.device)] = paged.flatten(0, 1)
        past.place.wait()

    def batch(self, ids: Tensor, sequences: slice = slice(None)) -> StepBatch:
        """Returns the last tokens [batch, tokens] of the case's sequences, or of a slice of
        them."""
        ids, table = ids[sequences], self.table[sequences]
        batch, count = ids.shape
        positions = np.arange(self.case.context - count, self.case.context, dtype=np.int32)
        offsets = np.arange(batch + 1, dtype=np.int32) * count
        return StepBatch(
            input_ids=ids.cpu().numpy().astype(np.int64).reshape(-1),
            positions=np.tile(positions, batch),
            cu_seqlens=offsets,
            context_lengths=np.full(batch, self.case.context, np.int32),
            block_table=table,
            logit_rows=offsets[1:].astype(np.int64) - 1,
        )


class Step:
    """A step of a case with greedy sampling, as the engine's loop runs it: captured where the
    device supports graphs."""

    def __init__(self, pages: Pages, past: Past, ids: Tensor) -> None:
        model, cache = pages.model, pages.cache
        self.name = "fusewire, fp8 KV" if past.float8 else "fusewire"
        self.stream = torch_stream(model.place.stream)
        self._pages, self._batch = pages, pages.batch(ids)
        model.record_steps(cache, pages.case.batch, max_tokens=1)
        pages.fill(past)  # after the capture, which writes into the pages
        for _ in range(2):  # a step longer than the captured ones is captured when it comes again
            model.step(self._batch, cache)
        greedy = GenerationParameters(ignore_eos=True)
        rules = SamplingRules(greedy)
        self._rows = SamplingRows([SamplingState(rules, [0]) for _ in range(pages.case.batch)])
        self._sampler = Sampler(model.place, model.vocab_size)

    def forward(self) -> None:
        logits = self._pages.model.step(self._batch, self._pages.cache)
        self._sampler.sample(logits, self._rows)

    def output(self) -> Tensor:
        return _logits(self._pages.model, self._batch, self._pages.cache)

    @property
    def replayed(self) -> bool:
        return self._recording() is not None

    def launched(self) -> Contender:
        """Returns the device's work of a step alone: the captured step with its inputs on the
        device, and captured sampling whose tokens are not read."""
        model, place, batch = self._pages.model, self._pages.model.place, self._batch
        logits = model.step(batch, self._pages.cache)
        graph = self._recording()
        if graph is None and place.stream.can_capture:
            raise kernels.Error("step: got no recording of it, wanted one; see what was logged")
        draws = greedy_draws(model, logits, self._rows)

        def work() -> None:
            if graph is None:
                model.step(batch, self._pages.cache)
            else:
                graph.replay(place.stream)
            draws.run()

        return Contender(f"{self.name}, launched", work, self.stream)

    def _recording(self) -> kernels.Graph | None:
        replays = self._pages.model._replays
        bucket = None if replays is None else replays.bucket(self._batch)
        found = None if replays is None or bucket is None else replays.recorded.get(bucket)
        return None if found is None else found[1]


def greedy_draws(model: DecoderModel, logits: kernels.Tensor, rows: SamplingRows) -> Contender:
    """Returns what the sampler launches for one row of logits per sequence."""
    place, memory = model.place, rows.memory(model.place)
    memory.tell(np.zeros(len(rows.states), np.int64))

    def draw() -> None:
        kernels.sample(memory.tokens, logits, *memory.settings, place.stream)
        kernels.gather_columns(memory.chosen, logits, memory.tokens, place.stream)
        kernels.log_sum_exp(memory.total, logits, place.stream)

    return launches("draws", place.stream, [draw])


class Prompt:
    """Whole prompts into an empty cache, with `sequences` of them per step."""

    def __init__(self, name: str, pages: Pages, ids: Tensor, sequences: int) -> None:
        self.name = name
        self.stream = torch_stream(pages.model.place.stream)
        self._pages = pages
        self._batches = [
            pages.batch(ids, slice(first, first + sequences))
            for first in range(0, len(ids), sequences)
        ]
        with pages.model.place.tuning():
            self.forward()

    def forward(self) -> None:
        for batch in self._batches:
            self._pages.model.step(batch, self._pages.cache)

    def output(self) -> Tensor:
        model, cache = self._pages.model, self._pages.cache
        return torch.cat([_logits(model, batch, cache) for batch in self._batches])


def _logits(model: DecoderModel, batch: StepBatch, cache: DecoderCache) -> Tensor:
    return torch.from_numpy(model.place.numpy(model.step(batch, cache)))


@contextmanager
def engine(
    model: DecoderModel, batch: int, longest: int, **more: Any
) -> Iterator[GenerationEngine]:
    """Yields an engine with room for `batch` sequences of `longest` tokens, without prefix
    caching. `more`: further settings."""
    settings = GenerationSettings(
        max_sequences=batch,
        max_length=longest,
        prefix_caching=False,
        dtype=model.place.dtype,
        **more,
    )
    with tempfile.TemporaryDirectory() as folder:
        there = tokenizer_folder(Path(folder), model.vocab_size)
        with GenerationEngine(there, settings, model=model) as found:
            yield found


class Answers:
    """Sends requests for `new` tokens each to an engine, all at once, and records when each token
    arrived."""

    def __init__(
        self, engine: GenerationEngine, prompts: Sequence[Sequence[int]], new: int
    ) -> None:
        self.times: list[list[float]] = [[] for _ in prompts]
        self.tokens: list[list[int]] = [[] for _ in prompts]
        events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        parameters = GenerationParameters(max_new_tokens=new, ignore_eos=True)
        began = time.perf_counter()
        for index, prompt in enumerate(prompts):
            request = GenerationRequest(prompt, parameters)
            engine.submit(request, None, lambda event, index=index: events.put((index, event)))
        left = len(prompts)
        while left:
            index, delta = events.get()
            if isinstance(delta, FusewireError):
                raise delta
            self.times[index].append(time.perf_counter())
            self.tokens[index].append(delta.token)
            left -= delta.finish_reason is not None
        self.seconds = time.perf_counter() - began

    def step_gaps_s(self) -> list[float]:
        """Returns the times between two tokens of a sequence while all requests ran; empty where
        they never did."""
        begin, end = max(times[0] for times in self.times), min(times[-1] for times in self.times)
        return [
            later - earlier
            for times in self.times
            for earlier, later in pairwise(times)
            if begin <= earlier and later <= end
        ]
