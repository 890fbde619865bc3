"""The engine that generates: requests in at any time, tokens out as they come.

Requests come from any thread and are checked and tokenised there. One thread runs the loop; one
tells the listeners, so that a slow one costs no step.
"""

from __future__ import annotations

import atexit
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fusewire import kernels
from fusewire.engine.best_of import BestOf
from fusewire.engine.continuation import Continuation, Delta
from fusewire.engine.generation_loop import (
    Branch,
    EngineCounts,
    Generation,
    GenerationLoop,
    Told,
)
from fusewire.engine.generation_memory import PAGE_SIZE, limits_of, pages_for
from fusewire.engine.generation_scheduler import GenerationScheduler, GenerationSequence
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.request import failure
from fusewire.engine.sampling import Sampler, SamplingState
from fusewire.errors import ConfigurationError, FusewireError, InvalidInput, Unavailable
from fusewire.models import load_decoder
from fusewire.placement import Placement
from fusewire.tasks.detokenizer import Detokenizer
from fusewire.tasks.generation_checks import check
from fusewire.tasks.generation_defaults import generation_defaults
from fusewire.tasks.generation_parameters import GenerationParameters
from fusewire.tasks.stop_strings import StopMatcher, StopStrings
from fusewire.tasks.tokenizer import Tokenizer, TokenizerFault, limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

_log = logging.getLogger(__name__)
_CLOSED = "server: got a request while it stops, wanted one before; ask another server"


@dataclass(frozen=True)
class Ticket:
    """A request that was taken."""

    num_input_tokens: int
    cancel: Callable[[], None]  # from any thread; what has not ended ends within a step


class GenerationEngine:
    """Generates for one model folder, many requests at a time, until closed."""

    def __init__(
        self,
        folder: Path | str,
        settings: GenerationSettings | None = None,
        device: str = "cpu",
        model: DecoderModel | None = None,
    ) -> None:
        """Loads the folder onto `device` (CheckpointError, ConfigurationError), or takes a model
        loaded from it as it is, and takes the memory for keys and values."""
        self.settings = settings = settings or GenerationSettings()
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.model = model or load_decoder(folder, Placement(device, settings.dtype))
        tokenizer = Tokenizer.load(Path(folder))
        if tokenizer is None:
            raise ConfigurationError(
                "tokenizer.json: got no such file, wanted the tokenizer of the model; generation "
                "answers with text. Save it into the folder"
            )
        self.tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self.limits = limits_of(self.model, settings)
        self.defaults = generation_defaults(Path(folder), self.limits)
        pages = self._pages()
        self.cache = KvCache(pages, PAGE_SIZE, settings.prefix_caching)
        scheduler = GenerationScheduler(
            self.cache, settings.max_batch_tokens, settings.max_sequences, settings.max_waiting
        )
        memory = self.model.new_cache(pages, PAGE_SIZE)
        if settings.graphs:
            self.model.record_steps(memory, settings.max_sequences, settings.max_batch_tokens)
        self._loop = GenerationLoop(
            self.model,
            memory,
            scheduler,
            Sampler(self.model.place, self.model.vocab_size),
        )
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tokens = 0
        self._door = threading.Lock()
        self._closing = False
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("generate", self._run), ("tell", self._tell))
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)  # before Python takes its threads away in the middle of a step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(
        self,
        prompt: str | Sequence[int],
        parameters: GenerationParameters,
        tell: Callable[[Told], None],
    ) -> Ticket:
        """Takes a request, from any thread; InvalidInput and Unavailable at once.

        `tell` is called in a thread of the engine with every Delta, in order, until each of
        `parameters.n` continuations had one with a finish_reason; or with the error that ends them
        all.
        """
        arrived = time.monotonic()
        check(parameters, self.limits, {})
        ids = self._prompt_ids(prompt)
        most = parameters.new_tokens(len(ids), self.limits)
        timeout = parameters.timeout_seconds
        sequence = GenerationSequence(
            token_ids=ids,
            most_tokens=len(ids) + most,
            priority=parameters.priority,
            deadline=None if timeout is None else arrived + timeout,
            continuations=parameters.sequences,
        )
        self._loop.scheduler.check(sequence)
        branches = self._branches(ids, parameters, most)
        if parameters.sequences > parameters.n:
            tell = BestOf(parameters.n, parameters.sequences, tell)
        generation = Generation(branches, lambda told: self._told.put(lambda: tell(told)))

        def add() -> None:
            try:
                self._loop.add(generation, sequence)
            except FusewireError as error:
                generation.tell(error)

        with self._door:  # what is asked behind it is done before the loop ends
            if self._closing:
                raise Unavailable(_CLOSED)
            self._asked.put(add)
        return Ticket(len(ids), lambda: self._asked.put(lambda: self._loop.cancel(generation)))

    def generate(
        self, prompt: str | Sequence[int], parameters: GenerationParameters
    ) -> Iterator[Delta]:
        """Takes a request and gives what it is told, as it comes; raises the error that ends it.
        Leaving the iterator cancels what has not ended."""
        told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        ticket = self.submit(prompt, parameters, told.put)
        left = parameters.n
        try:
            while left:
                delta = told.get()
                if isinstance(delta, FusewireError):
                    raise delta
                left -= delta.finish_reason is not None
                yield delta
        finally:
            ticket.cancel()

    def counts(self) -> EngineCounts:
        """What there is to do and what was done since the start, from any thread."""
        scheduler = self._loop.scheduler
        return EngineCounts(
            running=scheduler.running,
            waiting=scheduler.waiting,
            used_pages=self.cache.used,
            pages=self.cache.pages,
            tokens=self._tokens,
            preemptions=scheduler.preemptions,
            prefix_hit_tokens=self.cache.prefix_hit_tokens,
        )

    @property
    def preemptions(self) -> int:
        """How often a sequence gave up its pages and was computed again."""
        return self._loop.scheduler.preemptions

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, lets those that were taken run for so long, cancels the rest, and
        returns when all have been told."""
        with self._door:
            self._closing = True
        atexit.unregister(self.close)
        self._asked.put(lambda: None)
        if not self._ended.wait(drain_seconds):
            self._asked.put(self._loop.cancel_all)
        for thread in self._threads:
            if thread is not threading.current_thread():  # a listener may close
                thread.join()

    def _run(self) -> None:
        try:
            while not (self._closing and self._loop.idle and self._asked.empty()):
                self._take()
                counts = self._loop.step(time.monotonic())
                self._tokens += counts.prompt_tokens + counts.new_tokens
        except Exception as error:  # a defect: nobody must wait for an answer that never comes
            with self._door:
                self._closing = True
            while not self._asked.empty():
                self._asked.get()()
            self._loop.fail_all(failure(error))
        finally:
            self._ended.set()
            self._told.put(None)

    def _take(self) -> None:
        """Does what was asked since the last step; waits for it where nothing runs."""
        wait = self._loop.idle
        while wait or not self._asked.empty():
            self._asked.get()()
            wait = False

    def _tell(self) -> None:
        while (telling := self._told.get()) is not None:
            try:
                telling()
            except BaseException:  # SystemExit too: the others are to be told all the same
                _log.exception("a request's listener failed")

    def _prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            try:
                (encoded,) = self.tokenizer.encode([prompt], offsets=False)
            except TokenizerFault as fault:
                what = f"a text that the tokenizer cannot read ({fault})"
                raise InvalidInput("text_input", what, "text", "send valid Unicode") from None
            name, ids = "text_input", list(encoded.ids)
        else:
            name = "input_ids"
            try:
                ids = [] if isinstance(prompt, bytes) else [index(token) for token in prompt]
            except TypeError:
                raise InvalidInput(name, "what is no id", "whole numbers", "send ids") from None
        if not ids:
            raise InvalidInput(name, "no tokens", "at least one", "send a prompt")
        # A tokenizer may know more tokens than its model.
        if not 0 <= min(ids) <= max(ids) < self.model.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            wanted = f"ids 0..{self.model.vocab_size - 1}, the model's vocabulary"
            raise InvalidInput(name, f"id {wrong}", wanted, "use this model's tokenizer and tokens")
        return ids

    def _branches(
        self, ids: list[int], parameters: GenerationParameters, most: int
    ) -> list[Branch]:
        eos = () if parameters.ignore_eos else self.model.eos_token_ids
        stop_tokens = frozenset((*eos, *parameters.stop_token_ids))
        strings = StopStrings(parameters.stop)
        bad_words = [
            self.tokenizer.backend.encode(spelled, add_special_tokens=False).ids
            for word in parameters.bad_words
            for spelled in (word, f" {word}")
        ]
        seed = parameters.seed if parameters.seed is not None else secrets.randbits(63)
        return [
            Branch(
                Continuation(
                    index,
                    self._detokenizer.start(
                        ids, skip_special_tokens=parameters.skip_special_tokens
                    ),
                    StopMatcher(strings, include_stop=parameters.include_stop_str_in_output),
                    stop_tokens,
                    parameters.min_new_tokens,
                    most,
                ),
                SamplingState(parameters, ids, stop_tokens, seed + index, bad_words),
            )
            for index in range(parameters.sequences)
        ]

    def _pages(self) -> int:
        return pages_for(self.model, self.settings, self.limits.max_length)
