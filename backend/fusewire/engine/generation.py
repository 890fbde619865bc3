"""The engine that generates: requests in at any time, tokens out as they come.

An Engine (protocol.py): requests come from any thread and are checked and tokenised there. One
thread computes and calls back with the events.
"""

from __future__ import annotations

import atexit
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fusewire import kernels
from fusewire.engine.admission import CHARACTERS_OF_TOKEN, Admission
from fusewire.engine.admission_block import GenerationBlock
from fusewire.engine.aligner import Aligner
from fusewire.engine.branches import Event
from fusewire.engine.costs import CostTable
from fusewire.engine.deltas import Deltas
from fusewire.engine.engine_counts import EngineCounts
from fusewire.engine.generation_folder import check_beams, defaults_of, load_model, speech_of
from fusewire.engine.generation_loop import GenerationLoop
from fusewire.engine.generation_memory import (
    PAGE_SIZE,
    cache_for,
    limits_of,
    pages_for,
    with_large_steps,
)
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.generation_thread import GenerationThread
from fusewire.engine.kv_cache import KvCache
from fusewire.engine.place import Place
from fusewire.engine.progress import Progress
from fusewire.engine.request_preparation import RequestPreparation
from fusewire.engine.speech_requests import SpeechRequests
from fusewire.engine.spoken import Spoken
from fusewire.engine.step_costs import measure_steps
from fusewire.engine.ticket import Ticket
from fusewire.engine.token_times import TokenTimes
from fusewire.errors import InvalidInput
from fusewire.generation.checks import read_parameters
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures, Prompt, read_prompt
from fusewire.generation.request import GenerationRequest
from fusewire.models import SpeechModel
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.tokenizer import Tokenizer
from fusewire.text.tokenizer_library import limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel


class GenerationEngine:
    """Generates for one model folder, many requests at a time, until closed."""

    def __init__(
        self,
        folder: Path | str,
        settings: GenerationSettings | None = None,
        device: str = "cpu",
        model: DecoderModel | None = None,
        look_ahead: bool | None = None,
        large_steps: bool = False,
    ) -> None:
        """Loads the folder onto `device` (CheckpointError, ConfigurationError), or takes a model
        loaded from it as it is, and allocates the KV cache. `look_ahead`: whether steps are begun
        before the tokens of those before them are read, which changes no token; None: where the
        device computes meanwhile (GPUs). `large_steps`: whether steps may take long, where
        max_batch_tokens is not set."""
        self.folder = Path(folder)
        settings = settings or GenerationSettings()
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.model = model or load_model(folder, settings, device)
        if large_steps:
            settings = with_large_steps(self.model, settings)
        self.settings = settings
        self.tokenizer = tokenizer = Tokenizer.required(Path(folder))
        self.log_mel, self.speech = speech_of(self.model, self.folder)
        timestamps = (
            range(self.speech.timestamp_begin, self.model.vocab_size) if self.speech else ()
        )
        self.limits = limits_of(self.model, settings, self.speech)
        self.defaults = defaults_of(self.model, self.folder, self.speech)
        pages = self._pages()
        times_words = self.speech is not None and self.speech.alignment_heads
        spare = -(-self.limits.max_length // PAGE_SIZE) if times_words else 0
        self._memory = memory = cache_for(self.model, pages + spare)
        self.cache = KvCache(pages, PAGE_SIZE, settings.prefix_caching)
        scheduler = GenerationScheduler(
            self.cache, settings.max_batch_tokens, self.limits.max_sequences
        )
        detokenizer = Detokenizer(tokenizer, timestamps)
        self._preparation = RequestPreparation(
            self.folder,
            self.model,
            tokenizer,
            detokenizer,
            self.limits,
            settings.max_batch_tokens,
            scheduler.check,
        )
        self._hearing = None
        if isinstance(self.model, SpeechModel) and self.speech is not None:
            self._hearing = SpeechRequests(
                self.model,
                self.speech,
                self.limits,
                detokenizer,
                self._take_place,
                lambda: self._admission.ends_s(),
            )
        times = None
        if spare and isinstance(self.model, SpeechModel) and self.speech is not None:
            times = TokenTimes(self.model, self.speech, memory, first_page=pages)
        check_beams(self.folder, self.parameters(), self.limits, scheduler.check)
        max_queue_s = inf if settings.max_queue_ms is None else settings.max_queue_ms / 1000
        costs = CostTable(max_batch_tokens=settings.max_batch_tokens)
        self._admission = Admission(
            self.limits.max_sequences,
            settings.max_waiting,
            max_queue_s,
            costs=costs,
            pages=pages,
            page_size=PAGE_SIZE,
        )
        prepare = self.model.record_steps if settings.graphs else self.model.tune
        prepare(memory, self.limits.max_sequences, settings.max_batch_tokens)
        self._loop = GenerationLoop(
            self.model,
            memory,
            self.cache,
            scheduler,
            Aligner(self.model, settings.max_batch_tokens, times),
            self._admission,
            costs,
            look_ahead=self.model.place.overlaps if look_ahead is None else look_ahead,
        )
        self._thread = GenerationThread(self._loop)
        atexit.register(self.close)  # before Python takes its threads away in the middle of a step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def parameters(self, /, **asked: Any) -> GenerationParameters:
        """The parameters of one request, checked and completed by the folder's
        generation_config.json; InvalidInput."""
        return read_parameters(asked, self.limits, self.defaults)

    def generate(self, prompt: str | Sequence[int] | AudioFeatures, /, **asked: Any) -> Deltas:
        """Takes a request, as `submit` does, and returns its deltas, as they come; `asked` as for
        `parameters`. Leaving the iterator cancels what has not ended."""
        parameters = self.parameters(**asked)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        ticket = self.submit(GenerationRequest(prompt, parameters), None, events.put)
        return Deltas(parameters.n, parameters.answers, events, ticket.cancel)

    def check(self, prompt: Prompt, parameters: GenerationParameters) -> None:
        """InvalidInput where `submit` would refuse this request, however little else there is. It
        depends on the parameters and the number of the prompt's tokens alone."""
        request = GenerationRequest(prompt, parameters, tells="ids")
        place = Place(parameters.sequences, len(prompt.token_ids), prompt.max_new_tokens)
        self._preparation.prepare(prompt, request, None, lambda _: None, place)

    def submit(
        self,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
    ) -> Ticket:
        """See Engine (protocol.py). Raises InvalidInput and Unavailable (of which QueueFull) at
        once.

        The events are Deltas of each of `parameters.answers`, one for each token unless the request
        has it otherwise (`tells`), until each had one with a finish_reason; or an error, which ends
        them all. `BestOf` makes the answer of it. With beam search a Delta comes as soon as no
        other text can win, and those with a `score` at the end.

        `timeout_seconds` begins now; a `deadline` may come before. Without both there is the
        deadline of `slo_ms`, if that is set.
        """
        parameters = request.parameters
        if parameters.timeout_seconds is not None:
            timeout = time.monotonic() + parameters.timeout_seconds
            deadline = timeout if deadline is None else min(deadline, timeout)
        if deadline is None and self.settings.slo_ms is not None:
            deadline = time.monotonic() + self.settings.slo_ms / 1000
        prompt, field = request.prompt, request.prompt_field
        if self._hearing is not None:
            if not isinstance(prompt, AudioFeatures):
                wanted = "audio for a speech model"
                raise InvalidInput(field or "text_input", "a text", wanted, "send audio")
            return self._hearing.submit(prompt, request, deadline, callback)
        if isinstance(prompt, AudioFeatures):
            wanted = "a text or ids for a model that reads no speech"
            raise InvalidInput(field or "audio", "audio", wanted, "send a text or ids")
        if not isinstance(prompt, (Prompt, str)):  # ids need no tokenising
            prompt = read_prompt(prompt, parameters, self.tokenizer, self.limits, field)
        return self._take_place(prompt, request, deadline, callback)

    def _take_place(
        self,
        prompt: Prompt | str,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        spoken: Spoken | None = None,
    ) -> Ticket:
        parameters, field = request.parameters, request.prompt_field
        place = self._place(prompt, parameters, request.tenant, deadline, spoken)
        try:
            if not isinstance(prompt, Prompt):
                prompt = read_prompt(prompt, parameters, self.tokenizer, self.limits, field)
            place.tokens, place.most_new = len(prompt.token_ids), prompt.max_new_tokens
            generation, sequence = self._preparation.prepare(
                prompt, request, deadline, callback, place, spoken
            )
            goes_on = spoken is not None and spoken.goes_on
            cancel = self._thread.add(generation, sequence, goes_on=goes_on)
        except BaseException:
            self._admission.leave(place, parameters.sequences)
            raise
        tokens = len(prompt.token_ids)
        return Ticket(tokens, deadline, cancel, generation.num_output_tokens, generation.ask)

    def _place(
        self,
        prompt: Prompt | str,
        parameters: GenerationParameters,
        tenant: str,
        deadline: float | None,
        spoken: Spoken | None,
    ) -> Place:
        """Takes a request's place before its text is tokenised, by an estimate of its tokens."""
        if isinstance(prompt, Prompt):
            tokens, most = len(prompt.token_ids), prompt.max_new_tokens
        else:
            tokens = min(len(prompt) // CHARACTERS_OF_TOKEN + 1, self.limits.max_length)
            most = parameters.max_new_tokens or self.limits.max_length
        return self._admission.take(
            parameters.sequences,
            deadline,
            tokens=tokens,
            most_new=most,
            priority=parameters.priority,
            tenant=tenant,
            goes_on=spoken is not None and spoken.goes_on,
            later_tokens=spoken.later_tokens if spoken else 0,
            later_new=spoken.later_new if spoken else 0,
        )

    def refuse_in_front(self, block: GenerationBlock) -> None:
        """Lets the server's front refuse by `block` what would be refused here. Called before there
        are requests."""
        slo_ms = self.settings.slo_ms
        self._admission.show_in(block, inf if slo_ms is None else slo_ms / 1000)

    def refused_in_front(self) -> Counter[str]:
        """Numbers of requests that were refused by the block since the last call, by tenant."""
        return self._admission.refused()

    def measure_costs(self) -> None:
        """Measures what steps cost here, in about half a second, before there are requests."""

        def measure() -> None:
            room = self.cache.pages * PAGE_SIZE // 2
            tokens = min(self.settings.max_batch_tokens, room)
            most = tokens, self.limits.max_sequences
            costs = measure_steps(self.model, self._memory, self._loop.scheduler, *most)
            self._loop.costs = self._admission.times.costs = costs

        self._thread.call(measure)

    def together(self) -> AbstractContextManager[None]:
        """See Engine; requests begin in one step, where there is room for all."""
        return self._thread.together()

    @property
    def progress(self) -> Progress:
        return self._loop.progress

    def counts(self) -> EngineCounts:
        """What there is to do and what was done since the start, from any thread."""
        scheduler = self._loop.scheduler
        hits, misses, padding_tokens = self.model.replay_counts
        return EngineCounts(
            running=scheduler.running,
            waiting=scheduler.waiting,
            backlog_seconds=self._admission.backlog_s,
            used_pages=self.cache.used,
            pages=self.cache.pages,
            page_bytes=PAGE_SIZE * self.model.bytes_per_token,
            live_tokens=self.cache.live_tokens,
            tokens=self._loop.progress.tokens,
            step_seconds=self._loop.step_seconds,
            predicted_seconds=self._loop.predicted_seconds,
            preemptions=scheduler.preemptions,
            prefix_hit_tokens=self.cache.prefix_hit_tokens,
            graph_hits=hits,
            graph_misses=misses,
            padding_tokens=padding_tokens,
        )

    def take_queue_seconds(self) -> list[float]:
        """How long each request that began since the last call had waited since it was taken; of
        many requests the last ones. One thread calls it."""
        waits = self._loop.queue_seconds
        return [waits.popleft() for _ in range(len(waits))]

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is the engine's own."""
        return self._thread.runs_here

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, lets running ones continue for `drain_seconds`, cancels the rest,
        and returns when each has its last event."""
        self._admission.close()
        atexit.unregister(self.close)
        self._thread.close(drain_seconds)

    def _pages(self) -> int:
        return pages_for(self.model, self.settings, self.limits)
