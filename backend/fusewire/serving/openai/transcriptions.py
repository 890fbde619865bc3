"""/v1/audio/transcriptions and /v1/audio/translations: the transcription of an audio file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fusewire_client.calls import Infer
from fusewire_client.transports import AsyncTransport
from pydantic import BeforeValidator, ConfigDict, Field

from fusewire.errors import ComputeFailed, InvalidInput
from fusewire.generation.no_effect import has_no_effect
from fusewire.generation.seq2seq_parameters import MOST_PREFIX_TOKENS
from fusewire.generation.speech_languages import name_of
from fusewire.serving.openai.bodies import Body, check_size
from fusewire.serving.openai.errors import shown
from fusewire.serving.openai.sender import TENANT_HEADER
from fusewire.serving.openai.served import Transcriber
from fusewire.serving.openai.subtitles import Said, srt, vtt
from fusewire.serving.openai.verbose_transcript import verbose_segments, verbose_words
from fusewire.text.written import written_flag

_OUTPUTS = ("text_output", "num_input_tokens", "num_output_tokens", "language", "duration")
# All outputs that may be requested of a model.
OUTPUTS = (*_OUTPUTS, "segments")
# OpenAI's defaults: silence has no text, at any temperature; and the temperatures of its model,
# with thresholds as in transformers.
_SILENCE = {"logprob_threshold": -1.0, "no_speech_threshold": 0.6}
_FALLBACK = {
    "temperature": 0.0,
    "fallback_temperatures": [0.2, 0.4, 0.6, 0.8, 1.0],
    "compression_ratio_threshold": 1.35,
}
_WITHOUT_BOTH = frozenset(("do_sample", "best_of"))  # parameters that disable both defaults
# Fields with a list. Clients also send their names without the brackets of OpenAI's API.
_LISTS = ("timestamp_granularities",)
# The model ends requests according to their own `timeout_seconds`; this limit must not be shorter.
_LONGEST_S = 2 * 86400.0
# Parameters of generation that answers here cannot show -> their values without effect.
_NOT_ANSWERED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "num_return_sequences": (1,),
    "logprobs": (False,),
}
# Parameters whose values cannot be sent in a form.
_OF_JSON = ("logit_bias", "bad_words_ids")
Outputs = Mapping[str, np.ndarray]


def _not_streamed(value: object) -> object:
    if written_flag(value) is not False:
        wanted = "false, as an answer of this endpoint comes whole"
        raise InvalidInput("stream", shown(value), wanted, "remove it")
    return False


class SpeechBody(Body):
    """The fields of the form, whose values are texts. Other fields are the model's parameters."""

    model_config = ConfigDict(strict=False, extra="allow")

    file: bytes = Field(description="A WAV, FLAC, MP3 or Ogg file.", repr=False)
    language: str | None = Field(
        default=None,
        description="Language of the audio, as a code or an English name. Default: the folder's, "
        "otherwise detected.",
    )
    prompt: str = Field(
        default="",
        description="A text that precedes the transcription, to suggest names, spelling and style.",
    )
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Above 0: sample. 0, the default: decode greedily, and again at higher "
        "temperatures if a text repeats itself or is unlikely.",
    )
    timestamp_granularities: list[Literal["word", "segment"]] = Field(
        default=[],
        description="With verbose_json, which has segments by default: `word`, `segment` or both.",
    )
    stream: Annotated[bool, BeforeValidator(_not_streamed)] = Field(
        default=False, description="Only false is supported: the answer is not streamed."
    )

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str | bytes]]) -> SpeechBody:
        """Returns the body of a form. Raises ValidationError and InvalidInput."""
        values: dict[str, Any] = {}
        for name, value in fields:
            own = name.removesuffix("[]")
            if isinstance(value, bytes) != (own == "file"):
                got = "a file" if isinstance(value, bytes) else "a text"
                wanted = "a file, with its name" if own == "file" else "a text"
                raise InvalidInput(own[:64], got, wanted, "correct the form")
            if name != own or own in _LISTS:
                values.setdefault(own, []).append(value)
            elif own in values:
                raise InvalidInput(own[:64], "it twice", "it once", "remove one")
            else:
                values[own] = value
        return cls.model_validate(values)

    @classmethod
    def form(cls) -> dict[str, Any]:
        """Returns the form as an OpenAPI schema."""
        schema = cls.model_json_schema()
        schema["properties"]["file"] = {
            **schema["properties"]["file"],
            "type": "string",
            "format": "binary",
        }
        return {"multipart/form-data": {"schema": schema}}

    def names_used(self) -> dict[str, str]:
        """Returns the model's names -> those in the client's request."""
        names = {"audio": "file", "prompt_ids": "prompt", "tenant": TENANT_HEADER}
        if self.wants_words:
            names["return_timestamps"] = "timestamp_granularities"
        return names

    @property
    def wants_words(self) -> bool:
        return "word" in self.timestamp_granularities

    @property
    def timed(self) -> bool:
        """Whether the answer has times."""
        return self.response_format in ("srt", "verbose_json", "vtt")

    async def parameters(self, task: str, model: Transcriber) -> dict[str, Any]:
        """Returns the parameters of generation. Raises InvalidInput."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            got, wanted = f"it with response_format {self.response_format}", "it with verbose_json"
            raise InvalidInput("timestamp_granularities", got, wanted, "change one of them")
        asked = self._without_said_elsewhere(task, _answered(self.given()))
        for name, value in (("language", self.language), ("temperature", self.temperature)):
            if value not in (None, ""):
                asked[name] = value
        if model.multilingual or task == "translate":  # models without tasks refuse it
            asked["task"] = task
        if not _WITHOUT_BOTH & asked.keys():
            asked = {**_SILENCE, **({} if self.temperature else _FALLBACK), **asked}
        if self.timed:
            asked["return_timestamps"] = "word" if self.wants_words else True
        if prompt := self.prompt.strip():
            # With a space, as words after other words. The model refuses special tokens in it.
            ids = await model.ids("prompt", f" {prompt}", special_tokens=False)
            asked["prompt_ids"] = ids[-MOST_PREFIX_TOKENS:]  # the model uses the last ones
        check_size(asked)
        return asked

    def _without_said_elsewhere(self, task: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Returns the parameters without those that the path or other fields define. Raises
        InvalidInput for those that contradict them."""
        translates = task == "translate"
        other = f"/v1/audio/{'transcriptions' if translates else 'translations'}"
        meant = "word" if self.wants_words else self.timed
        remedy = "remove it; verbose_json has times, of words with timestamp_granularities[]=word"
        for name, value, says, hint in (
            ("task", task, "the path", f"remove it, or ask {other}"),
            ("return_timestamps", meant, "response_format", remedy),
        ):
            if name in asked and not has_no_effect(asked[name], (value,)):
                wanted = f"{json.dumps(value)} or none, as {says} says it"
                raise InvalidInput(name, shown(asked[name]), wanted, hint)
        return {key: v for key, v in asked.items() if key not in ("task", "return_timestamps")}


def _answered(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that affect an answer. Raises InvalidInput for those that it cannot
    show."""
    remedy = "remove it, or ask the KServe v2 endpoint"
    for name, harmless in _NOT_ANSWERED.items():
        if name in given and not has_no_effect(given[name], harmless):
            wanted = "none, as an answer of this endpoint is one text without log-probabilities"
            raise InvalidInput(name, shown(given[name]), wanted, remedy)
    for name in _OF_JSON:
        if name in given:
            wanted = "none, as a field of a form has no such value"
            raise InvalidInput(name, shown(given[name]), wanted, remedy)
    return {name: value for name, value in given.items() if name not in _NOT_ANSWERED}


async def transcribed(
    transport: AsyncTransport,
    model: Transcriber,
    body: SpeechBody,
    parameters: Mapping[str, Any],
    sender: Mapping[str, str],
) -> Outputs:
    """Returns the model's outputs. Cancelling the call cancels the request. `sender`: the request
    parameters that identify the sender."""
    wanted = OUTPUTS if body.timed else _OUTPUTS  # segments request timestamps
    inputs = {
        "audio": np.array([body.file], np.object_),
        "sampling_parameters": np.array([json.dumps(parameters).encode()], np.object_),
        **{f"return_{name}": np.array([True]) for name in wanted[1:]},
    }
    stream = transport.stream(Infer(model.name, inputs, wanted, sender), _LONGEST_S)
    async with contextlib.aclosing(stream) as responses:
        async for outputs in responses:
            return outputs
    raise ComputeFailed("server: got no answer of the model, wanted one; its log has the details")


def usage(outputs: Outputs) -> dict[str, Any]:
    """Returns the usage for the log. Answers have the seconds of audio instead, as in OpenAI's
    API."""
    prompt, completion = (int(outputs[f"num_{each}_tokens"][0]) for each in ("input", "output"))
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def answer(outputs: Outputs, body: SpeechBody, task: str) -> Response:
    text = outputs["text_output"][0].decode().strip()
    duration = round(float(outputs["duration"][0]), 3)
    seconds = {"type": "duration", "seconds": duration}
    if body.response_format == "text":
        return PlainTextResponse(f"{text}\n")
    if body.response_format == "json":
        return JSONResponse({"text": text, "usage": seconds})
    segments = json.loads(outputs["segments"][0]) or []
    if body.response_format != "verbose_json":
        said = [Said(each["start"], each["end"], each["text"]) for each in segments]
        if body.response_format == "srt":
            return PlainTextResponse(srt(said, duration))
        return PlainTextResponse(vtt(said, duration), media_type="text/vtt")
    language = outputs["language"][0].decode()
    verbose = {
        "task": "translate" if task == "translate" else "transcribe",
        "language": name_of(language) if language else "english",
        "duration": duration,
        "text": text,
    }
    if body.wants_words:
        verbose["words"] = verbose_words(segments)
    if set(body.timestamp_granularities) != {"word"}:
        verbose["segments"] = verbose_segments(segments, duration, body.temperature or 0.0)
    return JSONResponse({**verbose, "usage": seconds})
