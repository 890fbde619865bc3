"""Requests for transcripts of audio, as the requests for texts that they become: one, one that
detects the language in front of it, and one for each window of long audio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fusewire.engine.branches import Event
from fusewire.engine.held_audio import HeldAudio
from fusewire.engine.language_detection import LanguageDetection
from fusewire.engine.long_transcription import LongAudio, LongTranscription
from fusewire.engine.request_chain import Link, RequestChain
from fusewire.engine.spoken import Spoken, with_language, with_segments
from fusewire.engine.ticket import Ticket
from fusewire.engine.token_masks import OneOf
from fusewire.engine.window_attempts import WindowAttempts
from fusewire.engine.window_prompts import HeardWindow, WindowPrompts
from fusewire.errors import InvalidInput
from fusewire.generation.checks import read_parameters
from fusewire.generation.fallback import at_temperature, fallback_of
from fusewire.generation.limits import GenerationLimits
from fusewire.generation.parameters import GenerationParameters
from fusewire.generation.prompt import AudioFeatures, Prompt, read_audio
from fusewire.generation.request import GenerationRequest
from fusewire.generation.speech import SpeechTokens
from fusewire.models import SpeechModel
from fusewire.text.detokenizer import Detokenizer

# Parameters that a text in parts cannot have -> what they must be.
_OF_ONE_WINDOW = {"n": 1, "best_of": None, "stop": (), "stop_token_ids": (), "logprobs": None}


# Audio inputs of the greatest length that run and wait at once.
_MOST_HELD = 8


class TakePlace(Protocol):
    def __call__(
        self,
        prompt: Prompt,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        spoken: Spoken,
    ) -> Ticket: ...


class SpeechRequests:
    """Submits requests to one model of speech. From any thread."""

    def __init__(
        self,
        model: SpeechModel,
        speech: SpeechTokens,
        limits: GenerationLimits,
        detokenizer: Detokenizer,
        take_place: TakePlace,
        ends_s: Callable[[], Sequence[float]],
    ) -> None:
        """`take_place`: submits a request to the engine. `ends_s`: see HeldAudio."""
        self._model = model
        self._speech = speech
        self._limits = limits
        self._detokenizer = detokenizer
        self._prompts = WindowPrompts(model, speech, limits)
        self._take_place = take_place
        self._held = HeldAudio(_MOST_HELD * limits.max_audio_seconds, ends_s)

    def submit(
        self,
        audio: AudioFeatures,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
    ) -> Ticket:
        """See GenerationEngine. Where the request names no language, and the model knows several,
        it is heard first, by a request of its own."""
        parameters, window = request.parameters, self._model.features_shape[0]
        long = LongAudio(audio.features, window, window // self._model.max_source_length)
        if audio.features.ndim != 2 or long.frames <= window:
            self._model.check_features(audio.features)
            return self._submit_checked(audio, None, request, deadline, callback)
        seconds = long.frames * self._speech.seconds_per_position / long.frames_per_position
        self._check_long(parameters, long, seconds)
        self._held.take(seconds)
        told = self._held.until_the_end(seconds, callback)
        try:
            return self._submit_checked(AudioFeatures(long.at(0)), long, request, deadline, told)
        except BaseException:
            self._held.leave(seconds)
            raise

    def _submit_checked(
        self,
        first: AudioFeatures,
        long: LongAudio | None,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
    ) -> Ticket:
        """`first`: the window that the audio begins with, all of it unless it is `long`."""
        speech, parameters = self._speech, request.parameters

        def submit(language: str | None, *, goes_on: bool = False) -> Ticket:
            told = callback if language is None else with_language(callback, language)
            if long is not None:
                return self._submit_long(long, language, request, deadline, told, goes_on)
            told, chain = with_segments(told, speech), RequestChain()
            window = HeardWindow(first, language, goes_on=goes_on)
            ticket = self._decode(window, request, deadline, chain.follow, told)
            chain.begun(ticket)
            return replace(ticket, cancel=chain.cancel, num_output_tokens=chain.num_output_tokens)

        if not speech.languages:
            return submit(None)
        if parameters.language is not None:
            return submit(speech.known(parameters.language))
        likely = HeardWindow(first, next(iter(speech.languages)))
        prompt, _ = self._prompts.begin(likely, parameters)  # refused now, if at all
        windows = 1 if long is None else long.windows_from(0)
        detection = LanguageDetection(
            lambda token: submit(speech.language_of(token), goes_on=True), callback
        )
        ticket = self._hear_token(
            first,
            OneOf(speech.languages.values()),
            request,
            deadline,
            detection.heard,
            later_tokens=(windows - 1) * self._model.max_source_length,
            later_new=windows * prompt.max_new_tokens,
        )
        detection.begun(ticket)
        prompt_tokens = ticket.num_input_tokens if long is None else long.positions
        return replace(
            ticket,
            num_input_tokens=prompt_tokens,
            cancel=detection.cancel,
            num_output_tokens=detection.num_output_tokens,
        )

    def _hear_token(
        self,
        audio: AudioFeatures,
        mask: OneOf,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        **more: Any,
    ) -> Ticket:
        """Submits a request for one token, one that `mask` allows, after what every text begins
        with. `more`: fields of Spoken."""
        asked = read_parameters(
            {"max_new_tokens": 1, "priority": request.parameters.priority}, self._limits
        )
        spoken = Spoken([self._model.decoder_start_token_id], mask, **more)
        prompt = read_audio(audio, asked, self._limits, len(spoken.previous) + 1)
        hearing = GenerationRequest(audio, asked, tells="ids", tenant=request.tenant)
        return self._take_place(prompt, hearing, deadline, callback, spoken)

    def _submit_long(
        self,
        audio: LongAudio,
        language: str | None,
        request: GenerationRequest,
        deadline: float | None,
        callback: Callable[[Event], None],
        goes_on: bool,
    ) -> Ticket:
        timed = request.parameters.return_timestamps or True
        parameters = request.parameters.model_copy(update={"return_timestamps": timed})
        asked = replace(request, parameters=parameters, tells="ids")

        def write(frame: int, written: Sequence[int]) -> Ticket:
            window = HeardWindow(
                AudioFeatures(audio.at(frame), audio.heard_from(frame)),
                language,
                written,
                goes_on or frame > 0,
                audio.windows_from(frame) - 1,
            )
            follow = transcription.chain.follow
            return self._decode(window, asked, deadline, follow, transcription.heard)

        text = self._detokenizer.start(skip_special_tokens=parameters.skip_special_tokens)
        temperature = 0.0 if parameters.greedy else parameters.temperature
        transcription = LongTranscription(audio, self._speech, text, write, callback, temperature)
        first = write(0, ())
        transcription.chain.begun(first)
        return Ticket(
            audio.positions,
            deadline,
            transcription.chain.cancel,
            transcription.num_output_tokens,
        )

    def _decode(
        self,
        window: HeardWindow,
        request: GenerationRequest,
        deadline: float | None,
        follow: Callable[[Callable[[], Link]], None],
        callback: Callable[[Event], None],
    ) -> Ticket:
        """Submits a window, and again where its text is no good. `follow`: see WindowAttempts."""
        parameters, fallback = request.parameters, fallback_of(request.parameters)
        if fallback is None:
            prompt, spoken = self._prompts.begin(window, parameters)
            return self._take_place(prompt, request, deadline, callback, spoken)
        again = replace(window, goes_on=True)

        def decode(attempt: int, heard: Callable[[Event], None]) -> Ticket:
            asked = at_temperature(parameters, fallback.temperatures[attempt])
            prompt, spoken = self._prompts.begin(again if attempt else window, asked)
            judged = replace(spoken, judged=True)
            return self._take_place(
                prompt, replace(request, parameters=asked), deadline, heard, judged
            )

        def hear_silence(heard: Callable[[Event], None]) -> Ticket:
            _, spoken = self._prompts.begin(again, parameters)
            return self._hear_token(
                again.audio,
                OneOf([self._speech.no_speech]),
                request,
                deadline,
                heard,
                previous=spoken.previous,
                goes_on=True,
                later_tokens=spoken.later_tokens,
                later_new=spoken.later_new,
            )

        attempts = WindowAttempts(
            fallback,
            self._model.vocab_size,
            decode,
            hear_silence,
            follow,
            callback,
            rates_silence=request.rates_silence,
        )
        return decode(0, attempts.decoded)

    def _check_long(
        self, parameters: GenerationParameters, audio: LongAudio, seconds: float
    ) -> None:
        """Raises InvalidInput where the audio is too long, its features are wrong, or the request
        asks for what only one window has."""
        most = self._limits.max_audio_seconds
        if seconds > most:
            wanted = f"at most {most} s (max_audio_seconds)"
            raise InvalidInput("audio", f"{seconds:.1f} s of audio", wanted, "send it in parts")
        for frame in range(0, audio.frames, audio.window):
            self._model.check_features(audio.at(frame))
        longest = f"{audio.window * seconds / audio.frames:g} s"
        remedy = f"leave it out, or cut the audio into parts of {longest}"
        if "return_timestamps" in parameters.model_fields_set and not parameters.return_timestamps:
            wanted = f"true for audio of more than {longest}, whose parts begin at timestamps"
            raise InvalidInput("return_timestamps", "false", wanted, remedy)
        for name, off in _OF_ONE_WINDOW.items():
            if getattr(parameters, name) != off:
                wanted = f"{'1' if name == 'n' else 'none'} for audio of more than {longest}"
                named = parameters.named(name)
                raise InvalidInput(named, getattr(parameters, name), wanted, remedy)
