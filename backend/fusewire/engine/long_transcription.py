"""Audio that is longer than the model hears at once: a request for each window of it, which begins
where the text of the one before ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.request import failure
from fusewire.engine.request_chain import Link, RequestChain
from fusewire.errors import FusewireError
from fusewire.generation.fallback import TOO_HOT
from fusewire.generation.speech import SpeechTokens
from fusewire.generation.speech_windows import segments_at, window_of
from fusewire.text.detokenizer import TextStream


@dataclass(frozen=True)
class LongAudio:
    """Features [frames, bins], of which the model hears `window` frames at once."""

    features: NDArray[np.float32]
    window: int
    frames_per_position: int

    @property
    def frames(self) -> int:
        return len(self.features)

    @property
    def positions(self) -> int:
        """Positions that the encoder makes of it."""
        return -(-self.frames // self.frames_per_position)

    def at(self, frame: int) -> NDArray[np.float32]:
        """The window [window, bins] from `frame` on; what is missing after the end is 0, as
        transformers has it."""
        heard = self.features[frame : frame + self.window]
        return np.pad(heard, ((0, self.window - len(heard)), (0, 0)))

    def heard_from(self, frame: int) -> int:
        """Frames of the audio in the window from `frame` on."""
        return min(self.window, self.frames - frame)

    def windows_from(self, frame: int) -> int:
        """How many windows there are from `frame` to the end, at least."""
        return -(-(self.frames - frame) // self.window)


@dataclass
class LongTranscription:
    """Takes the events of its requests, whose text is not wanted, and gives one Delta for each
    window: what is kept of its tokens, with their text and segments."""

    audio: LongAudio
    speech: SpeechTokens
    text: TextStream
    # Submits the request for a window that begins at a frame, after the tokens of those before;
    # `heard` gets its events.
    write: Callable[[int, Sequence[int]], Link]
    callback: Callable[[Event], None]
    temperature: float  # of its windows, unless they say another

    chain: RequestChain = field(init=False, default_factory=RequestChain)
    _frame: int = field(init=False, default=0)  # where the window that is heard begins
    _tokens: list[int] = field(init=False, default_factory=list)  # tokens of that window
    _kept: int = field(init=False, default=0)  # number of tokens of the windows before
    _written: list[int] = field(init=False, default_factory=list)  # these tokens, to go on from
    _cached: int = field(init=False, default=0)  # positions found in the prefix cache
    _logprob: float = field(init=False, default=0.0)

    def heard(self, event: Event) -> None:
        """Takes an event of a window's request, in the engine's thread."""
        if isinstance(event, FusewireError):
            self.callback(event)
            return
        self._tokens += event.token_ids
        if event.finish_reason is None:
            return
        try:
            delta = self._ended(event)
            self.callback(delta)
            if delta.finish_reason is None:
                self.chain.follow(self._write)
        except Exception as error:  # its request has ended: nobody else tells of it
            self.callback(failure(error))

    def _write(self) -> Link:
        """Submits the next window; it does not go on from text that was drawn at a high
        temperature."""
        return self.write(self._frame, () if self.temperature >= TOO_HOT else self._written)

    def num_output_tokens(self) -> int:
        return self._kept + self.chain.num_output_tokens()

    def _ended(self, last: Delta) -> Delta:
        """The delta with what a window adds; the next one begins after it."""
        audio, speech = self.audio, self.speech
        if last.temperature is not None:
            self.temperature = last.temperature
        window, self._tokens = window_of(self._tokens, speech, last.token_ends), []
        kept = window.token_ids
        seconds_per_frame = speech.seconds_per_position / audio.frames_per_position
        frames = audio.heard_from(self._frame)
        decoded = last.decoded_window(self._frame)
        segments = [
            replace(each, window=decoded)
            for each in segments_at(
                window, self._frame * seconds_per_frame, frames * seconds_per_frame, speech
            )
        ]
        if window.advance is not None:
            frames = audio.frames_per_position * window.advance
        self._frame += frames
        self._kept += len(kept)
        # Where a part ends and the next begins, only the first of the two timestamps.
        self._written += kept if window.advance is None else kept[:-1]
        self._cached = min(self._cached + last.num_cached_tokens, audio.positions)
        self._logprob += last.cumulative_logprob
        over = self._frame >= audio.frames
        return Delta(
            index=0,
            text=self.text.steps(kept) + (self.text.flush() if over else ""),
            token=kept[-1] if kept else None,
            logprob=0.0,
            top_logprobs=(),
            cumulative_logprob=self._logprob,
            num_output_tokens=self._kept,
            finish_reason=last.finish_reason if over else None,
            num_cached_tokens=self._cached,
            before=kept[:-1],
            segments=segments,
            temperature=last.temperature,
        )
