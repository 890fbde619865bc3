"""The engine that generates: requests in at any time, tokens out as they come.

An Engine (protocol.py): requests come from any thread and are checked and tokenised there. One
thread computes and calls back with the events.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fusewire import kernels
from fusewire.audio import LogMel
from fusewire.engine.admission import CHARACTERS_OF_TOKEN, Admission
from fusewire.engine.admission_block import GenerationBlock
from fusewire.engine.aligner import Aligner
from fusewire.engine.beam_groups import BeamGroups
from fusewire.engine.beams_ahead import BeamsAhead
from fusewire.engine.branches import Event
from fusewire.engine.costs import CostTable
from fusewire.engine.deltas import Deltas
from fusewire.engine.engine_counts import EngineCounts
from fusewire.engine.generation_loop import GenerationLoop
from fusewire.engine.generation_memory import PAGE_SIZE, limits_of, pages_for
from fusewire.engine.generation_scheduler import GenerationScheduler
from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.kv_cache import KvCache, Source
from fusewire.engine.look_ahead import LookAhead
from fusewire.engine.place import Place
from fusewire.engine.progress import Progress
from fusewire.engine.prompt_logprobs import PromptScorer
from fusewire.engine.request import CANCELLED, CLOSED, failure
from fusewire.engine.request_preparation import RequestPreparation
from fusewire.engine.sampling import Sampler
from fusewire.engine.speech_requests import SpeechRequests
from fusewire.engine.spoken import Spoken
from fusewire.engine.step_costs import measure_steps
from fusewire.engine.ticket import Ticket
from fusewire.engine.token_times import TokenTimes
from fusewire.errors import Cancelled, ConfigurationError, InvalidInput, Unavailable
from fusewire.generation.checks import read_parameters
from fusewire.generation.defaults import generation_config, generation_defaults
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import (
    Prompt,
    Sound,
    max_new_tokens,
    read_prompt,
)
from fusewire.generation.request import GenerationRequest
from fusewire.generation.speech import SpeechTokens, read_speech
from fusewire.models import Seq2SeqModel, SpeechModel, load_decoder
from fusewire.placement import Placement
from fusewire.text.detokenizer import Detokenizer
from fusewire.text.tokenizer import Tokenizer, limit_tokenizer_threads

if TYPE_CHECKING:
    from fusewire.models.decoder import DecoderModel

_log = logging.getLogger(__name__)
# Far more than any step takes: a device that has hung must not hang the program's end.
_LONGEST_STEP_S = 60.0
_FORKED = "engine: got a request in a forked process, wanted it where it was loaded; load it here"


class GenerationEngine:
    """Generates for one model folder, many requests at a time, until closed."""

    def __init__(
        self,
        folder: Path | str,
        settings: GenerationSettings | None = None,
        device: str = "cpu",
        model: DecoderModel | None = None,
        look_ahead: bool | None = None,
    ) -> None:
        """Loads the folder onto `device` (CheckpointError, ConfigurationError), or takes a model
        loaded from it as it is, and allocates the KV cache. `look_ahead`: whether steps are begun
        before the tokens of those before them are read, which changes no token; None: where the
        device computes meanwhile (GPUs)."""
        self.folder = Path(folder)
        self.settings = settings = settings or GenerationSettings()
        if settings.threads:
            kernels.set_num_threads(settings.threads)
        limit_tokenizer_threads(settings.threads)
        self.model = model or _loaded(folder, settings, device)
        self.tokenizer = tokenizer = Tokenizer.required(Path(folder))
        self.sound, self.speech = _of_speech(self.model, self.folder)
        timestamps = (
            range(self.speech.timestamp_begin, self.model.vocab_size) if self.speech else ()
        )
        self.limits = limits_of(self.model, settings, self.speech)
        self.defaults = self._defaults()
        pages = self._pages()
        times_words = self.speech is not None and self.speech.alignment_heads
        spare = -(-self.limits.max_length // PAGE_SIZE) if times_words else 0
        # Its error says if there is too little.
        self._memory = memory = self.model.new_cache(pages + spare, PAGE_SIZE)
        self.cache = KvCache(pages, PAGE_SIZE, settings.prefix_caching)
        scheduler = GenerationScheduler(
            self.cache, settings.max_batch_tokens, settings.max_sequences
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
        self._check_folders_beams(scheduler)
        max_queue_s = inf if settings.max_queue_ms is None else settings.max_queue_ms / 1000
        costs = CostTable(max_batch_tokens=settings.max_batch_tokens)
        self._admission = Admission(
            settings.max_sequences,
            settings.max_waiting,
            max_queue_s,
            costs=costs,
            pages=pages,
            page_size=PAGE_SIZE,
        )
        prepare = self.model.record_steps if settings.graphs else self.model.tune
        prepare(memory, settings.max_sequences, settings.max_batch_tokens)
        sampler = Sampler(self.model.place, self.model.vocab_size)
        beam_groups = BeamGroups(
            self.model.place,
            self.model.vocab_size,
            sampler,
            self.cache,
            memory,
            BeamsAhead(self.model, memory),
        )
        ahead = self.model.place.overlaps if look_ahead is None else look_ahead
        self._loop = GenerationLoop(
            self.model,
            memory,
            scheduler,
            sampler,
            beam_groups,
            PromptScorer(self.model.place, self.model.vocab_size),
            Aligner(self.model, settings.max_batch_tokens, times),
            self._admission,
            costs,
            LookAhead(self.model, memory, scheduler, sampler, beam_groups) if ahead else None,
        )
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._closing = self._cancelling = False
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
        return read_parameters(asked, self.limits, self.defaults)

    def generate(self, prompt: str | Sequence[int] | Sound, /, **asked: Any) -> Deltas:
        """Takes a request, as `submit` does, and returns its deltas, as they come; `asked` as for
        `parameters`. Leaving the iterator cancels what has not ended."""
        parameters = self.parameters(**asked)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        ticket = self.submit(GenerationRequest(prompt, parameters), None, events.put)
        return Deltas(parameters.n, parameters.answers, events, ticket.cancel)

    def submit(
        self,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
    ) -> Ticket:
        """See Engine (protocol.py). InvalidInput and Unavailable (of which QueueFull) at once.

        The events are Deltas of each of `parameters.answers`, one for each token unless the request
        has it otherwise (`tells`), until each had one with a finish_reason; or an error, which ends
        them all. `BestOf` makes the answer of it. Of beam search a Delta comes as soon as no other
        text can win, and those with a `score` at the end.
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
            if not isinstance(prompt, Sound):
                wanted = "sound for a model of speech"
                raise InvalidInput(field or "text_input", "a text", wanted, "send sound")
            return self._hearing.submit(prompt, request, deadline, callback)
        if isinstance(prompt, Sound):
            wanted = "a text or ids for a model that reads no speech"
            raise InvalidInput(field or "audio", "sound", wanted, "send a text or ids")
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
            return self._submit(prompt, request, deadline, callback, place, spoken)
        except BaseException:
            self._admission.leave(place, parameters.sequences)
            raise

    def _place(
        self,
        prompt: Prompt | str,
        parameters: GenerationParameters,
        tenant: str,
        deadline: float | None,
        spoken: Spoken | None,
    ) -> Place:
        """Before a text is tokenised: by about how many tokens it has."""
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
        """The server's front refuses by it what would be refused here; before there are
        requests."""
        slo_ms = self.settings.slo_ms
        self._admission.show_in(block, inf if slo_ms is None else slo_ms / 1000)

    def refused_in_front(self) -> Counter[str]:
        """Requests that were refused by the block since the last call, by tenant."""
        return self._admission.refused()

    def measure_costs(self) -> None:
        """Measures what steps cost here, in about half a second, before there are requests."""
        ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                room = self.cache.pages * PAGE_SIZE // 2
                tokens = min(self.settings.max_batch_tokens, room)
                most = tokens, self.settings.max_sequences
                costs = measure_steps(self.model, self._memory, self._loop.scheduler, *most)
                self._loop.costs = self._admission.times.costs = costs
                ended.put(None)
            except Exception as error:
                ended.put(error)

        self._asked.put(work)  # by the thread that computes
        if (error := ended.get()) is not None:
            raise error

    def together(self) -> AbstractContextManager[None]:
        """See Engine; each request is on its way at once."""
        return nullcontext()

    def _submit(
        self,
        prompt: Prompt,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        place: Place,
        spoken: Spoken | None = None,
    ) -> Ticket:
        generation, sequence = self._preparation.prepare(
            prompt, request, deadline, callback, place, spoken
        )
        goes_on = spoken is not None and spoken.goes_on
        with self._submit_lock:  # what is put before closing is done before the loop ends
            if goes_on and self._cancelling:
                raise Cancelled(CANCELLED)
            if self._closing and not goes_on:
                raise Unavailable(CLOSED)
            if not self._thread.is_alive():
                raise Unavailable(_FORKED)
            self._asked.put(partial(self._loop.add, generation, sequence))
        return Ticket(
            len(prompt.token_ids),
            deadline,
            partial(self._asked.put, partial(self._loop.cancel, generation)),
            generation.num_output_tokens,
        )

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
        """Of the requests that began since the last call, or the last of them: how long each had
        waited since it was taken. One thread calls it."""
        waits = self._loop.queue_seconds
        return [waits.popleft() for _ in range(len(waits))]

    def close(self, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, lets running ones continue for so long, cancels the rest, and
        returns when each has its last event."""
        self._admission.close()
        with self._submit_lock:
            self._closing = True
        atexit.unregister(self.close)
        self._asked.put(lambda: None)
        self._thread.join(drain_seconds)
        with self._submit_lock:  # of what goes on until then it has the last
            self._cancelling = True
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
                self._loop.step(time.monotonic())
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

    def _check_folders_beams(self, scheduler: GenerationScheduler) -> None:
        """ConfigurationError where the folder asks for a search that has no room behind the
        shortest prompt, so that each request would be refused that does not ask for another."""
        parameters = self.parameters()
        if not parameters.searches:
            return
        encoder = isinstance(self.model, Seq2SeqModel)
        shortest_source = self.limits.source.max_length if self.limits.source and self.speech else 1
        shortest = GenerationSequence(
            token_ids=[0],
            most_tokens=1 + max_new_tokens(parameters, 1, self.limits),
            beams=parameters.num_beams,
            source=Source([0] * shortest_source) if encoder else None,
        )
        try:
            scheduler.check(shortest)
        except InvalidInput as error:
            _, file = generation_config(self.folder)
            raise ConfigurationError(f"{file}: {error}") from None

    def _pages(self) -> int:
        return pages_for(self.model, self.settings, self.limits)

    def _defaults(self) -> dict[str, Any]:
        model = self.model
        if not isinstance(model, Seq2SeqModel):
            return generation_defaults(self.folder)
        forced = {
            "forced_bos_token_id": model.forced_bos_token_id,
            "forced_eos_token_id": model.forced_eos_token_id or None,
        }
        defaults = generation_defaults(self.folder, encoder_decoder=True, speech=self.speech)
        return {**forced, **defaults}


def _of_speech(model: DecoderModel, folder: Path) -> tuple[LogMel | None, SpeechTokens | None]:
    """The features that a model of speech reads, and its tokens; None of another. CheckpointError
    where the folder does not say them, or other features than the model's."""
    if not isinstance(model, SpeechModel):
        return None, None
    sizes = model.features_shape, model.max_source_length, model.vocab_size
    return read_speech(folder, *sizes, model.eos_token_ids, model.decoder_heads)


def _loaded(folder: Path | str, settings: GenerationSettings, device: str) -> DecoderModel:
    place = Placement(
        device,
        settings.dtype,
        settings.quantize,
        settings.quantize_skipped,
        settings.kv_cache_dtype,
    )
    try:
        model = load_decoder(folder, place)
    except kernels.Error as error:  # no room, or no kernels for this model on this device
        raise ConfigurationError(f"{place.device}: {error}") from None
    place.check_skipped()
    return model
