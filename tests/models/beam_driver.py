"""Beam search end to end over a decoder's cache, for several requests at once: only what an engine
has to do in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fusewire import kernels as k
from fusewire.models.decoder import DecoderModel
from fusewire.models.step_batch import StepBatch
from numpy.typing import NDArray


@dataclass
class Driven:
    """A request, and the pages of its beams once its prompt is stored."""

    prompt: list[int]
    search: k.BeamSearch
    pages: k.BeamPages | None = field(default=None)


class BeamDriver:
    """Runs beam search. `bias` is added to log-probabilities of tokens. Pages are allocated in
    random order."""

    def __init__(
        self, model: DecoderModel, page_size: int, pages: int, bias: dict[int, float]
    ) -> None:
        self.model, self.place, self.bias = model, model.place, bias
        self.cache = model.new_cache(pages, page_size)
        self.free = np.random.default_rng(page_size).permutation(pages).tolist()
        self.copies = 0

    def run(self, prompts: Sequence[list[int]], **settings: Any) -> list[list[k.Hypothesis]]:
        requests = [Driven(prompt, k.BeamSearch(**settings)) for prompt in prompts]
        found = self._candidates(
            self._prefill(requests, settings["beams"]),
            np.arange(len(requests) + 1, dtype=np.int32),
            np.zeros(len(requests), np.float32),
            requests,
        )
        running = requests
        while running:
            searches = [request.search for request in running]
            k.advance_beams(searches, *found)
            step = k.running_beams(searches)
            pages = [request.pages for request in running]
            fresh = self._take(int(k.wanted_pages(pages, step.offsets).sum()))
            k.give_pages(pages, step.offsets, np.array(fresh, np.int32))
            forks = k.fork_pages(pages, step.offsets, step.parents)
            self.copies += len(forks.sources)
            self.cache.copy_pages(forks.sources, forks.destinations, forks.positions)
            self.free += forks.released.tolist()
            beams = np.diff(step.offsets)
            for request, count in zip(running, beams, strict=True):
                if count == 0:
                    self.free += request.pages.pages.tolist()
            running = [r for r, count in zip(running, beams, strict=True) if count]
            if running:
                beams = beams[beams > 0]
                lengths = np.repeat([request.pages.length for request in running], beams)
                rows = np.arange(len(lengths))
                pages = [request.pages for request in running]
                offsets = np.concatenate([[0], np.cumsum(beams)]).astype(np.int32)
                logits = self.model.step(
                    StepBatch(
                        input_ids=step.tokens,
                        positions=(lengths - 1).astype(np.int32),
                        cu_seqlens=np.append(rows, len(rows)).astype(np.int32),
                        context_lengths=lengths.astype(np.int32),
                        block_table=k.beam_tables(pages, offsets),
                        logit_rows=rows.astype(np.int64),
                    ),
                    self.cache,
                )
                found = self._candidates(logits, offsets, step.scores, running)
        return [request.search.hypotheses() for request in requests]

    def _take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]

    def _prefill(self, requests: list[Driven], beams: int) -> k.Tensor:
        page_size = self.cache.page_size
        lengths = np.array([len(request.prompt) for request in requests])
        tables = [self._take(-(-length // page_size)) for length in lengths.tolist()]
        table = np.zeros((len(requests), max(map(len, tables))), np.int32)
        for row, (request, own) in enumerate(zip(requests, tables, strict=True)):
            table[row, : len(own)] = own
            request.pages = k.BeamPages(
                beams=beams, page_size=page_size, tables=[own], length=len(request.prompt)
            )
        ends = np.cumsum([0, *lengths])
        return self.model.step(
            StepBatch(
                input_ids=np.concatenate([request.prompt for request in requests]),
                positions=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
                cu_seqlens=ends.astype(np.int32),
                context_lengths=lengths.astype(np.int32),
                block_table=table,
                logit_rows=ends[1:] - 1,
            ),
            self.cache,
        )

    def _candidates(
        self,
        logits: k.Tensor,
        offsets: NDArray[np.int32],
        scores: NDArray[np.float32],
        running: list[Driven],
    ) -> list[NDArray[Any]]:
        place, rows = self.place, logits.shape[0]
        if self.bias:  # log-probabilities change and are not normalized again
            normalized = k.empty(logits.shape, "float32", stream=place.stream)
            k.log_softmax(normalized, logits, place.stream)
            at = np.repeat(np.arange(rows), len(self.bias))
            k.bias_logits(
                normalized,
                place.exact(at, np.int32),
                place.exact(np.tile(list(self.bias), rows), np.int32),
                place.exact(np.tile(list(self.bias.values()), rows), np.float32),
                place.stream,
            )
            logits = normalized
        counts = [request.search.candidates for request in running]
        shape = [len(running), max(counts)]
        types = ("float32", "float32", "int32", "int32")
        out = [k.empty(shape, dtype, stream=place.stream) for dtype in types]
        k.beam_candidates(
            *out,
            logits,
            place.exact(offsets, np.int32),
            place.exact(counts, np.int32),
            place.exact(scores, np.float32),
            bool(self.bias),
            place.stream,
        )
        return [k.download(tensor, place.stream).numpy() for tensor in out]
