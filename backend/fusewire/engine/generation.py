"""The engine that generates: requests in at any time, tokens out as they come.

Requests come from any thread and are checked and tokenised there. One thread computes; it
puts events into queues, so that no slow reader delays it or other requests.
"""

from __future__ import annotations

import atexit
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fusewire import kernels
from fusewire.engine.admission import Admission
from fusewire.engine.continuation import Continuation
from fusewire.engine.deltas import Deltas
from fusewire.engine.generation_loop import (
    Branch,
    EngineCounts,
    Event,
    Generation,
    GenerationLoop,
)
from fusewire.engine.generation_memory import PAGE_SIZE, limits_of, pages_for
from fusewire.engine.generation_scheduler import GenerationScheduler, GenerationSequence
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.prompt_logprobs import PromptLogprobs, PromptScorer
from fusewire.engine.request import CLOSED, failure
from fusewire.engine.sampling import Sampler, SamplingState
from fusewire.engine.seeds import seed_of
from fusewire.errors import Unavailable
from fusewire.models import load_decoder
from fusewire.placement import Placement
from fusewire.tasks.bad_words import BadWords
from fusewire.tasks.chat import Chat
from fusewire.tasks.detokenizer import Detokenizer
from fusewire.tasks.generation_checks import check
from fusewire.tasks.generation_defaults import generation_defaults
from fusewire.tasks.generation_parameters import GenerationParameters
from fusewire.tasks.prompt import prompt_ids
from fusewire.tasks.stop_strings import StopMatcher, StopStrings
from fusewire.tasks.tokenizer import Tokenizer, limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

_log = logging.getLogger(__name__)
# (tag, Event): the events of requests, under the tags that they were submitted with.
EventQueue = queue.SimpleQueue[tuple[Any, Any]]

# Far more than any step takes: a device that has hung must not hang the program's end.
_LONGEST_STEP_S = 60.0
_FORKED = "engine: got a request in a forked process, wanted it where it was loaded; load it here"


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
        loaded from it as it is, and allocates the KV cache."""
        self.settings = settings = settings or GenerationSettings()
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.model = model or load_decoder(folder, Placement(device, settings.dtype))
        self.tokenizer = tokenizer = Tokenizer.required(Path(folder))
        self._detokenizer = Detokenizer(tokenizer)
        self._bad_words = BadWords(tokenizer)
        self.limits = limits_of(self.model, settings)
        self.defaults = generation_defaults(Path(folder))
        self.chat = Chat(Path(folder), tokenizer, self.limits)
        pages = self._pages()
        memory = self.model.new_cache(pages, PAGE_SIZE)  # its error says if there is too little
        self.cache = KvCache(pages, PAGE_SIZE, settings.prefix_caching)
        scheduler = GenerationScheduler(
            self.cache, settings.max_batch_tokens, settings.max_sequences
        )
        self._admission = Admission(settings.max_sequences, settings.max_waiting)
        if settings.graphs:
            self.model.record_steps(memory, settings.max_sequences, settings.max_batch_tokens)
        self._loop = GenerationLoop(
            self.model,
            memory,
            scheduler,
            Sampler(self.model.place, self.model.vocab_size),
            PromptScorer(self.model.place, self.model.vocab_size),
            self._admission,
        )
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tokens = 0
        self._submit_lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="generate", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before Python takes its threads away in the middle of a step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def parameters(self, /, **asked: Any) -> GenerationParameters:
        """The parameters of one request, checked and completed by the folder's
        generation_config.json; InvalidInput."""
        return GenerationParameters.of(asked, self.limits, self.defaults)

    def generate(self, prompt: str | Sequence[int], /, **asked: Any) -> Deltas:
        """Takes a request, as `submit` does, and returns its deltas, as they come; `asked` as for
        `parameters`. Leaving the iterator cancels what has not ended."""
        parameters = self.parameters(**asked)
        events: EventQueue = queue.SimpleQueue()
        ticket = self.submit(prompt, parameters, events)
        return Deltas(parameters.n, parameters.sequences, events, ticket.cancel)

    def submit(
        self,
        prompt: str | Sequence[int],
        parameters: GenerationParameters,
        events: EventQueue,
        tag: Any = None,
        arrived: float | None = None,
    ) -> Ticket:
        """Takes a request, from any thread; InvalidInput and Unavailable (of which QueueFull) at
        once.

        `events` gets (tag, Delta) of each of `parameters.sequences`, in order, until each had one
        with a finish_reason; or (tag, error), which ends them all. `BestOf` makes the answer of it.
        `arrived`: by time.monotonic(), where that was earlier.
        """
        arrived = time.monotonic() if arrived is None else arrived
        check(parameters, self.limits)
        self._admission.take(parameters.sequences)
        try:
            return self._submit(prompt, parameters, lambda event: events.put((tag, event)), arrived)
        except BaseException:
            self._admission.leave(parameters.sequences)
            raise

    def _submit(
        self,
        prompt: str | Sequence[int],
        parameters: GenerationParameters,
        on_event: Callable[[Event], None],
        arrived: float,
    ) -> Ticket:
        ids = prompt_ids(
            prompt,
            self.tokenizer,
            self.model.vocab_size,
            most=self.limits.longest_prompt(parameters.max_new_tokens),
            add_special_tokens=parameters.add_special_tokens,
        )
        most = parameters.new_tokens(len(ids), self.limits)
        timeout, scores = parameters.timeout_seconds, None
        if parameters.prompt_logprobs is not None:
            k = min(parameters.prompt_logprobs, self.model.vocab_size)
            scores = PromptLogprobs(ids, k)
        sequence = GenerationSequence(
            token_ids=ids,
            most_tokens=len(ids) + most,
            priority=parameters.priority,
            deadline=None if timeout is None else arrived + timeout,
            continuations=parameters.sequences,
            to_score=0 if scores is None else len(ids) - 1,
        )
        self._loop.scheduler.check(sequence)
        generation = Generation(self._branches(ids, parameters, most), on_event, scores)
        with self._submit_lock:  # what is put before closing is done before the loop ends
            if self._closing:
                raise Unavailable(CLOSED)
            if not self._thread.is_alive():
                raise Unavailable(_FORKED)
            self._asked.put(lambda: self._loop.add(generation, sequence))
        return Ticket(len(ids), lambda: self._asked.put(lambda: self._loop.cancel(generation)))

    def counts(self) -> EngineCounts:
        """What there is to do and what was done since the start, from any thread."""
        scheduler = self._loop.scheduler
        hits, misses, padding_tokens = self.model.replay_counts
        return EngineCounts(
            running=scheduler.running,
            waiting=scheduler.waiting,
            used_pages=self.cache.used,
            pages=self.cache.pages,
            page_bytes=PAGE_SIZE * self.model.bytes_per_token,
            live_tokens=self.cache.live_tokens,
            tokens=self._tokens,
            preemptions=scheduler.preemptions,
            prefix_hit_tokens=self.cache.prefix_hit_tokens,
            graph_hits=hits,
            graph_misses=misses,
            padding_tokens=padding_tokens,
        )

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, lets running ones continue for so long, cancels the rest, and
        returns when each has its last event."""
        with self._submit_lock:
            self._closing = True
        atexit.unregister(self.close)
        self._asked.put(lambda: None)
        self._thread.join(drain_seconds)
        self._asked.put(self._loop.cancel_all)
        self._thread.join(_LONGEST_STEP_S)
        if self._thread.is_alive():
            _log.error(
                "close: a step has not ended within %g s; the device hangs, restart the process",
                _LONGEST_STEP_S,
            )

    def _run(self) -> None:
        try:
            while not (self._closing and self._loop.idle and self._asked.empty()):
                self._take()
                self._tokens += self._loop.step(time.monotonic())
        except Exception as error:  # a defect: no request may wait for an answer that never comes
            with self._submit_lock:
                self._closing = True
            while not self._asked.empty():
                self._asked.get()()
            self._loop.fail_all(failure(error))

    def _take(self) -> None:
        """Runs the calls that were queued since the last step; waits for one when idle."""
        wait = self._loop.idle
        while wait or not self._asked.empty():
            self._asked.get()()
            wait = False

    def _branches(
        self, ids: list[int], parameters: GenerationParameters, most: int
    ) -> list[Branch]:
        eos = () if parameters.ignore_eos else self.model.eos_token_ids
        stop_tokens = frozenset((*eos, *parameters.stop_token_ids))
        strings = StopStrings(parameters.stop)
        bad_words = self._bad_words.token_ids(parameters.bad_words)
        seed = parameters.seed if parameters.seed is not None else secrets.randbits(63)
        first = SamplingState(parameters, ids, stop_tokens, seed, bad_words)
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
                first.fork(seed_of(seed, index)) if index else first,
            )
            for index in range(parameters.sequences)
        ]

    def _pages(self) -> int:
        return pages_for(self.model, self.settings, self.limits.max_length)
