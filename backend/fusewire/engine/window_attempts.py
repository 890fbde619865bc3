"""A window of audio whose text is decoded again, at a higher temperature, until it is good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.request import failure
from fusewire.engine.request_chain import Link
from fusewire.errors import FusewireError
from fusewire.generation.fallback import Fallback


class WindowAttempts:
    """Takes the events of each attempt's request; those of the one that is taken go to the
    callback, all at once. Silence is one event, of an empty text."""

    def __init__(
        self,
        fallback: Fallback,
        vocab_size: int,
        decode: Callable[[int, Callable[[Event], None]], Link],
        hear_silence: Callable[[Callable[[Event], None]], Link],
        follow: Callable[[Callable[[], Link]], None],
        callback: Callable[[Event], None],
        *,
        rates_silence: bool = False,
    ) -> None:
        """`decode`: submits an attempt, by its number; the caller submits the first, of which
        `decoded` gets the events. `hear_silence`: submits the request whose one token is that for
        no speech. `follow`: takes what submits the request after one that has ended.
        `rates_silence`: see GenerationRequest."""
        self._fallback = fallback
        self._vocab_size = vocab_size
        self._decode = decode
        self._hear_silence = hear_silence
        self._follow = follow
        self._callback = callback
        self._rates_silence = rates_silence
        self._deltas: list[Delta] = []  # those of this attempt
        self._attempt = 0
        self._no_speech: float | None = None  # its probability, once it was asked for

    def decoded(self, event: Event) -> None:
        """Takes an event of an attempt's request, in the engine's thread, as the following."""
        if isinstance(event, FusewireError):
            self._callback(event)
            return
        self._deltas.append(event)
        if event.finish_reason is not None:
            self._ended()

    def _heard(self, event: Event) -> None:
        if isinstance(event, FusewireError):
            self._callback(event)
            return
        self._no_speech = exp(event.cumulative_logprob)
        self._ended()

    def _ended(self) -> None:
        """Goes on after a request that has no more events: what fails here is told here."""
        try:
            self._go_on()
        except Exception as error:
            self._callback(failure(error))

    def _go_on(self) -> None:
        fallback, last = self._fallback, self._deltas[-1]
        tokens = [token for delta in self._deltas for token in delta.token_ids]
        unlikely = fallback.is_unlikely(last.cumulative_logprob / max(1, len(tokens)))
        if (
            self._no_speech is None
            and fallback.no_speech is not None
            and (unlikely or self._rates_silence)
        ):
            self._follow(lambda: self._hear_silence(self._heard))
        elif unlikely and self._no_speech is not None and fallback.is_silence(self._no_speech):
            self._tell([_empty(last)])
        elif self._attempt + 1 == len(fallback.temperatures) or not (
            unlikely or fallback.is_repetitive(tokens, self._vocab_size)
        ):
            self._tell(self._deltas)
        else:
            self._attempt += 1
            self._deltas = []
            self._follow(lambda: self._decode(self._attempt, self.decoded))

    def _tell(self, deltas: list[Delta]) -> None:
        deltas[-1].no_speech_prob = self._no_speech
        for delta in deltas:
            delta.temperature = self._fallback.temperatures[self._attempt]
            self._callback(delta)


def _empty(last: Delta) -> Delta:
    """The delta of an empty text, in place of what was written of silence."""
    return replace(
        last,
        text="",
        token=None,
        logprob=0.0,
        top_logprobs=(),
        cumulative_logprob=0.0,
        num_output_tokens=0,
        finish_reason="stop",
        score=None,
        before=(),
        token_ends=None,
    )
