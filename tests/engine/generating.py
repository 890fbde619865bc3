"""A tiny random GPT-2 with a real tokenizer, and readers of the engine's events."""

from __future__ import annotations

import gc
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from fusewire import kernels
from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.engine.generation_memory import PAGE_SIZE
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import Cancelled, FusewireError
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.request import GenerationRequest
from fusewire.models.decoder_cache import DecoderCache
from fusewire.models.step_batch import StepBatch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ANSWER_TIMEOUT_S = 60
LONGEST = 128
END = 256  # of text

Found = TypeVar("Found")


@cache
def tiny_gpt2() -> transformers.GPT2LMHeadModel:
    """Byte-level: 256 bytes and an end of text. Weights large enough that answers differ."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=LONGEST,
        n_embd=48,
        n_layer=2,
        n_head=4,
        bos_token_id=END,
        eos_token_id=END,
        initializer_range=0.3,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def byte_tokenizer(folder: Path) -> None:
    """256 bytes and the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    vocabulary["<|endoftext|>"] = END
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(folder / "tokenizer.json"))


def tiny_folder(folder: Path) -> Path:
    tiny_gpt2().save_pretrained(folder)
    byte_tokenizer(folder)
    return folder


def is_greedy(prompt: Sequence[int], tokens: list[int], new_tokens: int, model: Any = None) -> bool:
    """Whether transformers' `model` (default: the tiny GPT-2), given prompt and tokens, finds each
    token the likeliest at its place, and they end where `generate` ends: at the end of text, or
    after `new_tokens`."""
    with torch.no_grad():
        logits = (model or tiny_gpt2())(torch.tensor([[*prompt, *tokens]])).logits[0]
    likeliest = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    ended = tokens[-1] == END if END in tokens else len(tokens) == new_tokens
    return likeliest == tokens and END not in tokens[:-1] and ended


class Answer:
    """Reads the events of one request."""

    def __init__(self, parameters: GenerationParameters) -> None:
        self.events: queue.SimpleQueue[Delta | FusewireError] = queue.SimpleQueue()
        self.deltas: list[Delta] = []
        self.most_new_tokens = parameters.max_new_tokens
        self.cancelled = False
        self._best = BestOf(parameters.n, parameters.answers)
        self._ready: deque[Delta | FusewireError] = deque()

    def next(self) -> Delta:
        """The next delta; raises the error that ended the request."""
        while not self._ready:
            self._ready += self._best.add(self.events.get(timeout=ANSWER_TIMEOUT_S))
        event = self._ready.popleft()
        if isinstance(event, FusewireError):
            raise event
        self.deltas.append(event)
        return event

    def finish(self, continuations: int = 1) -> Answer:
        """Reads until so many continuations have ended, or the request was cancelled."""
        while sum(delta.finish_reason is not None for delta in self.deltas) < continuations:
            try:
                self.next()
            except Cancelled:
                self.cancelled = True
                break
        return self

    def tokens(self, index: int = 0) -> list[int]:
        mine = [delta.token for delta in self.deltas if delta.index == index]
        return [token for token in mine if token is not None]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)

    def finish_reason(self, index: int = 0) -> str | None:
        return [delta for delta in self.deltas if delta.index == index][-1].finish_reason


def ask(
    engine: GenerationEngine, prompt: str | Sequence[int], **parameters: object
) -> tuple[Answer, Ticket]:
    asked = engine.parameters(**parameters)
    answer = Answer(asked)
    return answer, engine.submit(GenerationRequest(prompt, asked), None, answer.events.put)


def between_steps(engine: GenerationEngine, look: Callable[[], Found]) -> Found:
    """What `look` returns in the engine's thread, when nothing is computed and what was is counted:
    an answer's last event comes before the end of its step."""
    found: queue.SimpleQueue[Found] = queue.SimpleQueue()
    engine._thread._asked.put(lambda: found.put(look()))
    return found.get(timeout=ANSWER_TIMEOUT_S)


def pass_steps(engine: GenerationEngine, steps: int) -> None:
    """Returns when at least `steps` - 1 more have been computed, or at once if there is nothing to
    compute: who waits so meets an engine at work, however fast it is."""
    for _ in range(steps):
        between_steps(engine, lambda: None)


@contextmanager
def held(engine: GenerationEngine) -> Iterator[None]:
    """What is submitted and cancelled meanwhile is all there before the next step."""
    go = Event()
    engine._thread._asked.put(lambda: _wait(go))
    try:
        yield
    finally:
        go.set()


def _wait(go: Event) -> None:
    assert go.wait(ANSWER_TIMEOUT_S)


@contextmanager
def spoiled(
    engine: GenerationEngine, spoil: Callable[[NDArray[np.float32]], None], at: int | None = None
) -> Iterator[None]:
    """The logits [rows, vocab] of step `at`, counted from 1, are what `spoil` makes of them; None:
    those of every step."""
    steps, step = count(1), engine.model.step

    def spoiling(batch: StepBatch, cache: DecoderCache) -> kernels.Tensor:
        logits = step(batch, cache)
        if at not in (None, next(steps)):
            return logits
        numbers = np.array(engine.model.place.numpy(logits))
        spoil(numbers)
        return engine.model.place.floats(numbers)

    engine.model.step = spoiling  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.model.step = step  # type: ignore[method-assign]


def first_row_nan(logits: NDArray[np.float32]) -> None:
    """As a model gives them that is broken for one of its rows."""
    logits[0] = np.nan


class Cancelling:
    """Cancels requests of an engine when they have had a number of its steps."""

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self._steps = 0
        self._due: list[tuple[int, Ticket]] = []
        self._step = engine._loop.step
        engine._loop.step = self._next  # type: ignore[method-assign]

    def ask(
        self, steps: int, prompt: str | Sequence[int], **parameters: object
    ) -> tuple[Answer, Ticket]:
        """Submits a request that has so many steps, from the next one on, and no more."""
        with held(self._engine):
            answer, ticket = ask(self._engine, prompt, **parameters)
            self._engine._thread._asked.put(lambda: self._due.append((self._steps + steps, ticket)))
            self._engine._thread._asked.put(self._cancel)
        return answer, ticket

    def _next(self, now: float) -> None:
        self._step(now)
        self._steps += 1
        self._cancel()

    def _cancel(self) -> None:
        for _, ticket in (each for each in self._due if each[0] <= self._steps):
            ticket.cancel()  # taken before the next step
        self._due = [each for each in self._due if each[0] > self._steps]


def allocated_bytes(engine: GenerationEngine) -> int:
    """Of the engine's device, between two steps, when nothing is computed."""
    gc.collect()  # engines of other tests
    stats = kernels.default_allocator(engine.model.place.device).stats
    return between_steps(engine, lambda: stats()["allocated_bytes"])


class ShortOfPages(GenerationEngine):
    """Pages for two sequences of full length and a half, whatever there is memory for."""

    def _pages(self) -> int:
        return 5 * self.limits.max_length // PAGE_SIZE // 2


def tiny_engine(folder: Path, **settings: object) -> GenerationEngine:
    return GenerationEngine(tiny_folder(folder), GenerationSettings(**settings))
