"""Beam search over logits that are a function of the previous tokens: by the library, and by a
simple search in Python that keeps every history as a list."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from fusewire import kernels as k
from numpy.typing import NDArray

from tests.ops.beams import Candidates

Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]
# (log-probabilities [rows, vocab], their histories) -> log-probabilities
Processor = Callable[[NDArray[np.float32], list[tuple[int, ...]]], NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    beams: int
    max_tokens: int
    eos: tuple[int, ...] = ()
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    n: int = 1
    patience: float = 1.0

    @property
    def awaited(self) -> int:
        """The number of finished hypotheses that end a search."""
        return max(1, int(self.beams * self.patience + 0.5))

    def new(self) -> k.BeamSearch:
        return k.BeamSearch(
            beams=self.beams,
            max_tokens=self.max_tokens,
            eos_token_ids=list(self.eos),
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            n=self.n,
            patience=self.patience,
        )


def random_logits(
    vocab: int, seed: int, *, eos: tuple[int, ...] = (), levels: int = 0, forbidden: float = 0.0
) -> Logits:
    """Returns a function from a prefix to its logits. `levels`: the number of different values, an
    eighth apart."""

    def logits(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        rng = np.random.default_rng([seed, zlib.crc32(np.array(prefix, np.int64).tobytes())])
        row = rng.standard_normal(vocab).astype(np.float32) * 3
        if levels:
            row = rng.integers(-levels, 0, vocab).astype(np.float32) / 8
        row[list(eos)] += 1 if levels else 2  # so that lengths vary
        row[rng.random(vocab) < forbidden] = -np.inf
        return row

    return logits


def candidates_of(
    rows: NDArray[np.float32],
    offsets: NDArray[np.int32],
    beam_scores: NDArray[np.float32],
    counts: list[int],
    normalized: bool,
) -> Candidates:
    tensor = k.Tensor.from_numpy
    shape = (len(counts), max(counts))
    out = Candidates(
        np.zeros(shape, np.float32),
        np.zeros(shape, np.float32),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
    )
    inputs = (rows, offsets, np.array(counts, np.int32), beam_scores)
    k.beam_candidates(*map(tensor, out), *map(tensor, inputs), normalized)
    return out


@dataclass
class Running:
    """A request during `search`."""

    case: Case
    logits: Logits
    prompt: tuple[int, ...]
    search: k.BeamSearch = field(init=False)
    steps: int = 0
    settled: list[list[int]] = field(default_factory=list)  # settled tokens of each step

    def __post_init__(self) -> None:
        self.search = self.case.new()

    def prefixes(self, beams: int) -> list[tuple[int, ...]]:
        return [(*self.prompt, *self.search.history(beam).tolist()) for beam in range(beams)]


def search(
    cases: list[tuple[Case, Logits, tuple[int, ...]]], process: Processor | None = None
) -> list[Running]:
    """Runs all searches together, until each is done."""
    requests = [Running(*case) for case in cases]
    offsets = np.arange(len(requests) + 1, dtype=np.int32)
    scores = np.zeros(len(requests), np.float32)
    active = requests
    while active:
        prefixes = [
            prefix
            for request, beams in zip(active, np.diff(offsets), strict=True)
            for prefix in request.prefixes(beams)
        ]
        of_prefix = [
            request.logits
            for request, beams in zip(active, np.diff(offsets), strict=True)
            for _ in range(beams)
        ]
        rows = np.stack([of(prefix) for of, prefix in zip(of_prefix, prefixes, strict=True)])
        if process is not None:
            k.log_softmax(k.Tensor.from_numpy(rows), k.Tensor.from_numpy(rows))
            rows = np.ascontiguousarray(process(rows, prefixes))
        counts = [request.search.candidates for request in active]
        found = candidates_of(rows, offsets, scores, counts, process is not None)
        searches = [request.search for request in active]
        k.advance_beams(searches, *found)
        step = k.running_beams(searches)
        settled = np.split(step.settled_tokens, step.settled_offsets[1:-1])
        for request, tokens in zip(active, settled, strict=True):
            request.steps += 1
            request.settled.append(tokens.tolist())
        going = np.diff(step.offsets) > 0
        assert [not request.search.done for request in active] == going.tolist()
        active = [request for request, on in zip(active, going, strict=True) if on]
        offsets = np.concatenate([[0], np.cumsum(np.diff(step.offsets)[going])]).astype(np.int32)
        scores = step.scores
    return requests


@dataclass(frozen=True)
class Found:
    tokens: tuple[int, ...]
    score: np.float32


def plain_search(
    case: Case, logits: Logits, prompt: tuple[int, ...], normalized: bool
) -> list[Found]:
    """Searches as the library does, in fp32, with ties in order. Logits are log-probabilities where
    `normalized`; otherwise they are normalized here."""
    running = [((), np.float32(0))]
    finished: list[Found] = []
    for length in range(1, case.max_tokens + 1):
        scored = []
        for beam, (tokens, score) in enumerate(running):
            row = logits((*prompt, *tokens))
            if not normalized:
                row = row - row.max()
                row = row - np.log(np.exp(row).sum())
            scored += [(-(score + x), beam, token) for token, x in enumerate(row) if x > -np.inf]
        scored.sort()
        keep = max(2, 1 + len(case.eos)) * case.beams
        divisor = np.float32(float(length) ** case.length_penalty)
        children = []
        for place, (negative, beam, token) in enumerate(scored[:keep]):
            tokens = (*running[beam][0], token)
            if length == case.max_tokens or token in case.eos:
                if place < case.beams:
                    finished.append(Found(tokens, -negative / divisor))
            elif len(children) < case.beams:
                children.append((tokens, -negative))
        running = children
        finished = sorted(finished, key=lambda f: -f.score)[: case.awaited]
        if not running:
            break
        if len(finished) == case.awaited:
            if case.early_stopping is True:
                break
            reach = length
            if case.early_stopping == "never" and case.length_penalty > 0:
                reach = case.max_tokens
            best = running[0][1] / np.float32(float(reach) ** case.length_penalty)
            if best <= finished[-1].score:
                break
    return finished
