"""Reads requests for generated text and makes the responses of their clients.

The server's thread reads and submits a request. Other threads do so for requests with long texts,
and for those with messages or audio, which worker processes render and decode.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusewire import kernels
from fusewire.audio import ReadsAudio
from fusewire.engine.best_of import BestOf
from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine, Ticket
from fusewire.engine.generation_errors import TOO_LATE
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.request import CANCELLED, Answer, Request, failure
from fusewire.errors import Cancelled, ConfigurationError, DeadlineExceeded, FusewireError
from fusewire.generation.chat import FIELD as MESSAGES
from fusewire.generation.chat import Chat
from fusewire.generation.parameter_reader import ParameterReader
from fusewire.generation.parameters import GenerationParameters
from fusewire.serving.instance.generated import Generated, TokensToText
from fusewire.serving.instance.generation_metrics import GenerationMetrics
from fusewire.serving.instance.hearing import Hearing
from fusewire.serving.instance.response import Incoming, Response
from fusewire.tasks.generate import GenerateRequest, RequestReader
from fusewire.tasks.transcribe import read as read_transcription
from fusewire.text.work_queue import LONG_CHARACTERS, WorkQueue
from fusewire.text_workers.workers import TextWorkers


def load(folder: Path, settings: GenerationSettings, device: str) -> GenerationEngine:
    """Returns the engine of a folder. Raises ConfigurationError also where the device has not
    enough memory."""
    try:
        engine = GenerationEngine(folder, settings, device)
        engine.measure_costs()
        return engine
    except kernels.Error as error:
        raise ConfigurationError(f"{device}: {error}") from None


class Generating:
    """Reads requests and submits them to a generation engine, until it is closed."""

    def __init__(self, engine: GenerationEngine, metrics: GenerationMetrics) -> None:
        self._engine = engine
        self._reader = ParameterReader(engine.limits, engine.defaults)
        self._metrics = metrics
        self._metrics.watch_engine(engine)
        self._long_texts = WorkQueue()
        self._chats = WorkQueue("queue: got messages", engine.settings.max_waiting)
        self._hearing = None
        if engine.log_mel is not None:
            most = engine.limits.max_audio_seconds, engine.settings.max_waiting
            self._hearing = Hearing(engine.log_mel, *most)
        self._workers = TextWorkers(engine.folder, max_length=engine.limits.max_length)
        self._requests = RequestReader(self._reader, Chat(self._conversation_ids))
        tokenizer = engine.tokenizer
        self._to_text = TokensToText(
            tokenizer.token_text,
            tokenizer.token_text.part,
            tokenizer.decode,
            tokenizer.decode_as_spelled,
        )

    def begin(self, incoming: Incoming, response: Response) -> None:
        """See Begin.begin."""
        arrived = time.monotonic()
        request = incoming.read()
        # Set now, so that a request that is refused while it waits is counted correctly.
        response.tenant, response.probe = request.tenant, request.probe
        deadline, long = incoming.deadline, request.characters > LONG_CHARACTERS
        if self._hearing is None and not long and MESSAGES not in request.inputs:
            self._begin(request, deadline, response, arrived)
            return
        # The server reuses the memory of its tensors; texts were copied when they were decoded.
        inputs = {name: array.copy() for name, array in request.inputs.items()}
        later = replace(request, inputs=inputs)

        def begin(audio: ReadsAudio | None = None) -> None:
            if response.cancelled():
                raise Cancelled(CANCELLED)
            self._begin(later, deadline, response, arrived, audio)

        def fail(error: Exception) -> None:
            response.fail(failure(error))

        if self._hearing is not None:
            self._hearing.take(begin, fail)
        else:
            (self._long_texts if long else self._chats).take(begin, fail)

    def close(self) -> None:
        self._long_texts.close()
        self._chats.close()
        if self._hearing is not None:
            self._hearing.close()
        self._workers.close()

    def _begin(
        self,
        request: Request,
        deadline: float | None,
        response: Response,
        arrived: float,
        audio: ReadsAudio | None = None,
    ) -> None:
        engine = self._engine
        parameters = dict(request.parameters)
        if request.priority:
            parameters.setdefault("priority", request.priority)

        def due(asked: GenerationParameters) -> float | None:
            if asked.timeout_seconds is None:
                return deadline
            timeout = arrived + asked.timeout_seconds
            return timeout if deadline is None else min(deadline, timeout)

        def begins(asked: GenerationParameters) -> None:
            if (until := due(asked)) is not None and time.monotonic() > until:
                raise DeadlineExceeded(TOO_LATE)

        wanted: GenerateRequest = (
            read_transcription(request.inputs, parameters, self._reader, audio, begins)
            if audio
            else self._requests.read(request.inputs, parameters)
        )
        if request.tenant:
            wanted = replace(wanted, tenant=request.tenant)
        metrics = None if request.probe else self._metrics
        response.content = Texts(wanted, self._to_text, metrics, arrived)
        response.begin(engine, wanted, due(wanted.parameters))

    def _conversation_ids(self, field: str, **arguments: Any) -> list[int]:
        ids: list[int] = self._workers.submit("conversation", field, **arguments).result()
        return ids


class Texts:
    """The content of a response: the n texts of a request."""

    def __init__(
        self,
        request: GenerateRequest,
        to_text: TokensToText,
        metrics: GenerationMetrics | None,
        arrived: float,
    ) -> None:
        """`to_text`: the tokenizer's. `metrics`: None for a request that is not counted.
        `arrived`: a time of time.monotonic."""
        self._request = request
        self._to_text = to_text
        self._metrics = metrics
        self._arrived = arrived
        self._last: dict[int, float] = {}  # text -> when its last token came
        self._answer = BestOf(request.parameters.n, request.parameters.answers)
        self._failed: FusewireError | None = None
        self._generated: Generated
        self._ask: Callable[[], None]

    def begun(self, ticket: Ticket) -> None:
        self._ask = ticket.ask
        self._generated = Generated(self._request, ticket.num_input_tokens, self._to_text)

    @property
    def ready(self) -> bool:
        return self._failed is not None or self._generated.ready

    @property
    def ended(self) -> bool:
        return self._failed is not None or self._generated.ended

    def add(self, event: Event) -> None:
        for each in self._answer.add(event):
            if isinstance(each, FusewireError):
                self._failed = self._failed or each
            else:
                self._note(each)
                self._generated.add(each)

    def take(self) -> Answer:
        if self._failed is not None:
            return self._failed
        # Asks for everything that comes while this is sent as one event. One event per token would
        # take Python longer than a short step with many streams.
        self._ask()
        return self._generated.take()

    def _note(self, delta: Delta) -> None:
        now, tokens, metrics = time.monotonic(), len(delta.before) + 1, self._metrics
        if metrics is None:
            return
        if self._request.parameters.searches and self._last:
            return  # tokens of a search become final in groups
        last = self._last.get(delta.index)
        if last is None:
            last = now if delta.first_at is None else delta.first_at
            tokens -= 1
            if not self._last:
                metrics.first_token(last - self._arrived)
        if tokens:
            metrics.next_token((now - last) / tokens)
        self._last[delta.index] = now
