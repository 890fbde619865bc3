"""What a model of speech writes around words: the tokens that a text begins with, by language, task
and whether it has timestamps; and what timestamps say, as Whisper has them (Radford et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusewire.audio import LogMel, read_log_mel
from fusewire.errors import CheckpointError, shown
from fusewire.generation.speech_alignment import read_alignment
from fusewire.generation.speech_languages import code_of
from fusewire.weights import read_json

FILE = "generation_config.json"
TASKS = ("transcribe", "translate")
_THRESHOLDS = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")


@dataclass(frozen=True)
class DecodedWindow:
    """What a model of speech hears at once, from frame `seek` of the audio on (of 10 ms), and how
    good its text is: the mean log-probability of its tokens, and where they were looked for the
    temperature that they were taken at and the probability that nothing is said."""

    seek: int
    avg_logprob: float
    temperature: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True)
class Segment:
    """What was said from `start` on until `end`, in seconds; None where no timestamp says so.
    `times`, where they were asked for: from when until when each of its tokens is said. `window`:
    in which the audio was heard."""

    start: float | None
    end: float | None
    token_ids: Sequence[int]
    times: Sequence[tuple[float, float]] | None = None
    window: DecodedWindow | None = None


@dataclass(frozen=True)
class SpeechTokens:
    """The special tokens of a model of speech. `languages` are by code, and empty where it knows
    one alone; so are `tasks`. Timestamps are the last tokens of the vocabulary, from
    `timestamp_begin` on, one for each position of the encoder, `seconds_per_position` apart; a text
    begins within the first `max_initial_timestamp`, None: within all. `alignment_heads` (layer,
    head) of the decoder follow what is heard, none where the folder names none that it has; their
    weights are smoothed over `median_filter_width` positions."""

    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    no_timestamps: int
    max_initial_timestamp: int | None
    seconds_per_position: float
    eos: int
    previous: int | None = None  # in front of a text that stands before the one to be written
    alignment_heads: Sequence[tuple[int, int]] = ()
    median_filter_width: int = 7

    @property
    def timestamp_begin(self) -> int:
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """What a text of silence begins with, as OpenAI numbered it."""
        return self.no_timestamps - 1

    def language_of(self, token: int) -> str:
        return next(code for code, each in self.languages.items() if each == token)

    def known(self, language: str) -> str | None:
        """The code of a language that the model knows, by code, by token or by its English name;
        None for another."""
        code = code_of(language.lower().removeprefix("<|").removesuffix("|>"))
        return code if code in self.languages else None

    def begin(self, language: str | None, task: str | None, *, timestamps: bool) -> list[int]:
        """The tokens behind the one that a decoder starts with."""
        of_language = [] if language is None else [self.languages[language]]
        of_task = [self.tasks[task or TASKS[0]]] if self.tasks else []
        return [*of_language, *of_task, *([] if timestamps else [self.no_timestamps])]

    def segments(
        self, token_ids: Sequence[int], ends: Sequence[float] | None = None
    ) -> Iterator[Segment]:
        """The segments of a text with timestamps; a text without has one segment, without times.
        `ends`: when each of the tokens has been said, which is when the next one begins."""
        spans = None if ends is None else list(zip([0.0, *ends], ends, strict=False))

        def segment(start: float | None, end: float | None, places: Sequence[int]) -> Segment:
            times = None if spans is None else [spans[place] for place in places]
            return Segment(start, end, [token_ids[place] for place in places], times)

        start, places = None, []
        for place, token in enumerate(token_ids):
            if token < self.timestamp_begin:
                places += [place] * (token < self.eos)  # others are special
                continue
            seconds = round((token - self.timestamp_begin) * self.seconds_per_position, 6)
            if places:
                yield segment(start, seconds, places)
                start, places = None, []
            else:
                start = seconds
        if places:
            yield segment(start, None, places)


def read_speech(
    folder: Path | str,
    features_shape: tuple[int, int],
    positions: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    decoder_heads: tuple[int, int],
) -> tuple[LogMel, SpeechTokens]:
    """The features that a model whose encoder has `positions` reads, and its tokens;
    CheckpointError where the folder does not say them, or other features than the model's, [frames,
    bins]. `decoder_heads`: layers of the decoder, and heads of each."""
    log_mel = read_log_mel(folder)
    if (log_mel.frames, log_mel.bins) != features_shape:
        frames, bins = features_shape
        raise CheckpointError(
            f"preprocessor_config.json: got features of {log_mel.frames} frames x {log_mel.bins} "
            f"bins, wanted {frames} x {bins}, as the model's config.json says; download both again"
        )
    if len(eos_token_ids) != 1:
        raise _fault("eos_token_id", list(eos_token_ids), "one token, as timestamps have it")
    seconds = log_mel.seconds / positions
    tokens = _read_tokens(folder, vocab_size, seconds, eos_token_ids[0])
    heads, width = read_alignment(folder, *decoder_heads)
    return log_mel, replace(tokens, alignment_heads=heads, median_filter_width=width)


def _read_tokens(
    folder: Path | str, vocab_size: int, seconds_per_position: float, eos: int
) -> SpeechTokens:
    values = read_json(folder, FILE)
    if values is None:
        raise CheckpointError(
            f"{FILE}: got no such file, wanted it to know the tokens of languages and timestamps; "
            "download it into the model's folder"
        )

    def token(key: str, value: Any) -> int:
        if type(value) is not int or not 0 <= value < vocab_size:
            raise _fault(key, value, f"a token in 0..{vocab_size - 1}")
        return value

    multilingual = values.get("is_multilingual", True) is not False
    languages = _tokens("lang_to_id", values, token) if multilingual else {}
    tasks = _tokens("task_to_id", values, token) if multilingual else {}
    if multilingual and not tasks.keys() >= {*TASKS}:
        raise _fault("task_to_id", values.get("task_to_id"), f"tokens of {' and '.join(TASKS)}")
    first = values.get("max_initial_timestamp_index")
    if first is not None and (type(first) is not int or first < 0):
        raise _fault("max_initial_timestamp_index", first, "a number of timestamps")
    previous = values.get("prev_sot_token_id")
    return SpeechTokens(
        {code.removeprefix("<|").removesuffix("|>"): each for code, each in languages.items()},
        tasks,
        token("no_timestamps_token_id", values.get("no_timestamps_token_id")),
        first,
        seconds_per_position,
        eos,
        None if previous is None else token("prev_sot_token_id", previous),
    )


def speech_defaults(values: Mapping[str, Any], tokens: SpeechTokens) -> dict[str, Any]:
    """The parameters that generation_config.json sets, with these values: language, task,
    return_timestamps, condition_on_prev_tokens and the thresholds of a text that is no good.
    CheckpointError. In older folders
    `forced_decoder_ids` name the first two."""
    found = {key: values[key] for key in ("language", "task") if values.get(key) is not None}
    forced = values.get("forced_decoder_ids")
    if not found and isinstance(forced, list):
        ids = {each[1] for each in forced if isinstance(each, list) and len(each) == 2}
        for key, known in (("language", tokens.languages), ("task", tokens.tasks)):
            for name in [name for name, token in known.items() if token in ids]:
                found[key] = name
    if "language" in found:
        language = found["language"]
        code = tokens.known(language) if isinstance(language, str) else None
        if code is None:
            raise _fault("language", language, f"one of {', '.join(tokens.languages) or 'none'}")
        found["language"] = code
    flags = ["return_timestamps", *_THRESHOLDS]
    if tokens.previous is not None:
        flags.append("condition_on_prev_tokens")
    return found | {key: values[key] for key in flags if values.get(key) is not None}


def _tokens(
    key: str, values: Mapping[str, Any], token: Callable[[str, Any], int]
) -> dict[str, int]:
    found = values.get(key)
    if not isinstance(found, dict) or not found:
        wanted = "an object of tokens, as multilingual models have it"
        raise _fault(key, found, wanted)
    return {name: token(key, value) for name, value in found.items()}


def _fault(key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{FILE}: {key}: got {shown(got)}, wanted {wanted}; download the file again"
    )
