"""`Transcriber`: transcripts of audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from fusewire.api.arguments import listed
from fusewire.api.generating_model import GeneratingModel
from fusewire.api.offline import answers
from fusewire.api.outputs import RequestOutput
from fusewire.audio import AudioReader
from fusewire.errors import InvalidInput, type_name
from fusewire.generation.prompt import AudioFeatures
from fusewire.generation.speech_words import Word, timed_words
from fusewire.text.tokenizer import Tokenizer

Audio = bytes | str | Path | BinaryIO | NDArray[np.float32]
_FIELD = "audio"
# Types of a single audio input, and others that are not a list of inputs.
_ONE = (bytes, bytearray, str, Path, np.ndarray, Mapping)


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """What was said from `start` to `end`, in seconds; None without a timestamp. `words`: if
    requested. The other fields describe the window that contains the segment, which begins at frame
    `seek` (of 10 ms) of the audio: `avg_logprob` of its tokens, with fallback thresholds the
    `temperature`, and for a text that is unlikely by them `no_speech_prob`, the probability that
    there is no speech."""

    start: float | None
    end: float | None
    text: str
    words: list[Word] | None = None
    seek: int | None = None
    avg_logprob: float | None = None
    temperature: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of one audio input. `language`: its code, for a multilingual model.
    `segments`: if timestamps were requested. `output`: the same with tokens and log-probabilities,
    and all texts if `n` asks for several."""

    text: str
    language: str | None
    segments: list[SpokenSegment] | None
    output: RequestOutput


class Transcriber(GeneratingModel):
    """Transcribes speech with a folder of Whisper or a Hugging Face id, many audio inputs at a
    time.

    All inputs of a call run in one engine with continuous batching. A context manager: on exit the
    model's memory is freed. Threads may share a Transcriber.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
        quantize: Literal["none", "int8", "fp8"] = "none",
        quantize_skip: Sequence[str] = (),
        revision: str | None = None,
        max_sequences: int | None = None,
        kv_cache_mib: int | None = None,
        kv_cache_dtype: Literal["auto", "fp8"] = "auto",
        max_audio_seconds: int | None = None,
        threads: int = 0,
    ) -> None:
        """Loads the model and allocates the KV cache.

        Args:
            model: A model folder, or an id on Hugging Face.
            device: As for `LLM`.
            dtype: As for `LLM`.
            quantize: As for `LLM`.
            quantize_skip: As for `LLM`.
            revision: Branch, tag or commit of a Hugging Face id.
            max_sequences: Maximum number of audio inputs that are transcribed at the same time.
                Default: 64.
            kv_cache_mib: Size of the KV cache in MiB. Default: as for `LLM`.
            kv_cache_dtype: Data type of the KV cache, as for `LLM`.
            max_audio_seconds: Maximum length of an audio input. Default: 3600.
            threads: CPU threads; 0: one per core.

        Raises:
            CheckpointError: The folder cannot be read, or its model does not transcribe speech.
            ConfigurationError: There is no such device, dtype or format here, or a value is out of
                range.
        """
        self._open(
            model,
            revision,
            device,
            dtype=dtype,
            quantize=quantize,
            quantize_skip=quantize_skip,
            max_sequences=max_sequences,
            kv_cache_mib=kv_cache_mib,
            kv_cache_dtype=kv_cache_dtype,
            max_audio_seconds=max_audio_seconds,
            threads=threads,
        )
        assert self.engine.log_mel is not None  # the model is one of speech
        self._reader = AudioReader(self.engine.log_mel, self.engine.limits.max_audio_seconds)

    def transcribe(
        self,
        audio: Audio | Sequence[Audio],
        *,
        language: str | None = None,
        task: Literal["transcribe", "translate"] | None = None,
        return_timestamps: bool | Literal["word"] | None = None,
        use_tqdm: bool = True,
        **parameters: Any,
    ) -> list[Transcript]:
        """Transcribes audio inputs, in their order.

        Args:
            audio: An audio file (its path, its bytes, or a file object open in binary mode), or
                float32 samples [n] between -1 and 1 at 16 kHz; or a list of these. Each is read
                when it is its turn.
            language: The spoken language, by its code or English name. Default: the folder's, else
                detected for each input.
            task: `transcribe`, or `translate` into English.
            return_timestamps: Return when each segment was said; "word": each word too.
            use_tqdm: Show progress and tokens/s on a terminal.
            **parameters: Further parameters of generation: `num_beams=5`, …

        Returns:
            A Transcript for each input.

        Raises:
            InvalidInput: A parameter is out of range, a file is missing, or none of the inputs can
                be read. Nothing was computed; the message has the index of the input.
            IncompleteOutputs: Some inputs cannot be read, or failed while they were computed; the
                error has the outputs of the others.
        """
        one = isinstance(audio, _ONE) or _is_file(audio)
        many: Any = [audio] if one else listed(_FIELD, audio, "audio files")
        named = {"language": language, "task": task, "return_timestamps": return_timestamps}
        asked = {**parameters, **{name: v for name, v in named.items() if v is not None}}
        unread = []
        for index, one in enumerate(many):
            try:
                unread.append(partial(self._features, _checked(one)))
            except InvalidInput as error:
                raise error.at(f"{_FIELD}[{index}]") from None
        requested = [asked] * len(unread)
        engine = self.engine
        timed = bool(engine.parameters(**asked).return_timestamps)
        outputs = answers(engine, self._turns, unread, requested, shown=use_tqdm, field=_FIELD)
        return [_transcript(output, engine.tokenizer, timed=timed) for output in outputs]

    def _features(self, audio: Any) -> AudioFeatures:
        if isinstance(audio, np.ndarray):
            heard = self._reader.samples(audio, _FIELD)
        else:
            data = bytes(audio) if isinstance(audio, (bytes, bytearray)) else _contents(audio)
            heard = self._reader.file(data, _FIELD)
        return AudioFeatures(heard.features, heard.frames)


def _transcript(output: RequestOutput, tokenizer: Tokenizer, *, timed: bool) -> Transcript:
    best = output.outputs[0]
    segments = [
        SpokenSegment(
            each.start,
            each.end,
            tokenizer.decode(list(each.token_ids)),
            timed_words(each, output.language, tokenizer.decode_as_spelled),
            **({} if each.window is None else asdict(each.window)),
        )
        for each in best.segments or ()
    ]
    return Transcript(best.text, output.language, segments if timed else None, output)


def _is_file(audio: object) -> bool:
    """Whether it is a file object, as returned by `open`."""
    return hasattr(audio, "read")


def _checked(audio: Any) -> Any:
    """Returns what is read later: bytes, the Path of an existing file, a file object or an array.
    Raises InvalidInput for other values."""
    if isinstance(audio, (str, Path)):
        audio = Path(audio)
        _contents(audio, 0)
    if isinstance(audio, (bytes, bytearray, Path, np.ndarray)) or _is_file(audio):
        return audio
    wanted = "an audio file (its path, its bytes, or open in binary), or samples (numpy)"
    raise InvalidInput(_FIELD, type_name(audio), wanted, "convert it")


def _contents(file: Any, most_bytes: int = -1) -> bytes:
    """Returns the bytes of a file object or of a Path, at most `most_bytes` (-1: all). Raises
    InvalidInput."""
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                return opened.read(most_bytes)
        data = file.read(most_bytes)
    except (OSError, ValueError) as error:  # ValueError: it is closed
        reason = getattr(error, "strerror", None) or error
        named = file if isinstance(file, Path) else getattr(file, "name", "an open file")
        got, wanted = f"{reason}: {named}", "an audio file"
        raise InvalidInput(_FIELD, got, wanted, "correct the path") from None
    if not isinstance(data, bytes):
        got, wanted = "a file that is open as text", "one that is open in binary"
        raise InvalidInput(_FIELD, got, wanted, 'open it with mode "rb"')
    return data
