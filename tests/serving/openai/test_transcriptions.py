"""Forms with audio at the OpenAI endpoint, and the formats of transcripts, without a server."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import pytest
from fusewire.errors import InvalidInput
from fusewire.serving.openai.errors import ApiError, invalid
from fusewire.serving.openai.forms import form_fields
from fusewire.serving.openai.served import Transcriber
from fusewire.serving.openai.subtitles import Said, spans, srt, vtt
from fusewire.serving.openai.transcriptions import SpeechBody, answer, transcribed
from fusewire_client.calls import Infer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.datastructures import Headers


class OfBytes(Transcriber):
    """Whose tokens are characters."""

    async def ids(self, field: str, text: str, *, special_tokens: bool) -> list[int]:
        return [*text.encode()]


KNOWS_TASKS: Any = Transcriber("whisper", "transcribe", None, 64)  # type: ignore[arg-type]
ENGLISH: Any = Transcriber("whisper", "transcribe", None, 64, False)  # type: ignore[arg-type]
GREEDY = ("do_sample", "false")
SILENCE = {"logprob_threshold": -1.0, "no_speech_threshold": 0.6}  # has no text
FIELDS: list[tuple[str, str | bytes]] = [("file", b"RIFF"), ("model", "whisper")]


def parsed(content: bytes, kind: str) -> list[tuple[str, str | bytes]]:
    return form_fields(Headers({"content-type": kind}), bytearray(content))


def form(fields: dict[str, Any], files: Any) -> tuple[bytes, str]:
    request = httpx2.Request("POST", "http://there", data=fields, files=files)
    return request.read(), request.headers["content-type"]


def test_a_form_has_its_fields_and_the_bytes_of_its_file():
    audio = bytes(range(256)) * 1000
    body, kind = form({"model": "w", "language": "français"}, {"file": ("a.wav", audio)})
    assert dict(parsed(body, kind)) == {"model": "w", "language": "français", "file": audio}


@pytest.mark.parametrize(
    ("fields", "files", "message"),
    [
        ({}, [("file", ("a", b"a")), ("file", ("b", b"b"))], "Too many files"),
        ({f"f{i}": "a" for i in range(129)}, {"file": ("a", b"a")}, "Too many fields"),
        ({"prompt": "a" * 70000}, {"file": ("a", b"a")}, "Part exceeded maximum size"),
    ],
)
def test_too_much_of_a_form_is_refused(fields, files, message):
    with pytest.raises(ApiError) as refused:
        parsed(*form(fields, files))
    assert refused.value.status_code == 400
    assert message in refused.value.body["error"]["message"]


@given(st.data())
def test_any_bytes_are_a_form_or_refused(data):
    body, kind = form({"model": "w"}, {"file": ("a.wav", b"RIFF" * 9)})
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    kind = data.draw(st.sampled_from([kind, kind.partition(";")[0], "multipart/form-data"]))
    try:
        found = parsed(bytes(damaged), kind)
    except ApiError:
        return
    assert all(isinstance(value, (str, bytes)) for _, value in found)


def parameters_of(body: SpeechBody, task: str, model: Transcriber) -> dict[str, Any]:
    return asyncio.run(body.parameters(task, model))


def test_the_fields_become_the_models_parameters():
    more = [("language", "de"), ("temperature", "0.2"), ("top_k", "3"), ("user", "me")]
    body = SpeechBody.of([*FIELDS, *more])
    asked = {"language": "de", "temperature": 0.2, "top_k": "3", "task": "transcribe", **SILENCE}
    assert parameters_of(body, "transcribe", KNOWS_TASKS) == asked
    nothing = [
        ("n", "1"),
        ("stream", "False"),
        ("logprobs", "false"),
        ("num_return_sequences", "1"),
        ("return_timestamps", "false"),
    ]
    plain = SpeechBody.of([*FIELDS, GREEDY, *nothing])
    asked = {"do_sample": "false"}
    assert parameters_of(plain, "transcribe", ENGLISH) == asked
    assert parameters_of(plain, "translate", ENGLISH) == {"task": "translate", **asked}
    timed = [GREEDY, ("response_format", "verbose_json"), ("timestamp_granularities[]", "segment")]
    words = [*timed, ("timestamp_granularities[]", "word")]
    for more, timestamps in ((timed, True), (words, "word")):
        body = SpeechBody.of([*FIELDS, *more])
        asked = {"do_sample": "false", "return_timestamps": timestamps}
        assert parameters_of(body, "transcribe", ENGLISH) == asked
        bare = [(name.removesuffix("[]"), value) for name, value in (*more, ("task", "transcribe"))]
        assert parameters_of(SpeechBody.of([*FIELDS, *bare]), "transcribe", ENGLISH) == asked
    # A model without alignment heads refuses it by the name that the client used.
    assert body.names_used()["return_timestamps"] == "timestamp_granularities"


def test_of_a_long_prompt_the_end_is_sent():
    model: Any = OfBytes("whisper", "transcribe", None, 64)  # type: ignore[arg-type]
    words = "a" * 9000 + "the end"
    asked = parameters_of(SpeechBody.of([*FIELDS, ("prompt", words)]), "transcribe", model)
    assert bytes(asked["prompt_ids"]) == words[-4096:].encode()


def test_temperature_0_and_none_fall_back_to_higher_ones():
    """As OpenAI's. What a client says of it holds."""
    fallback = {
        "temperature": 0.0,
        "fallback_temperatures": [0.2, 0.4, 0.6, 0.8, 1.0],
        "compression_ratio_threshold": 1.35,
        **SILENCE,
    }
    for more in ([], [("temperature", "0")]):
        assert parameters_of(SpeechBody.of([*FIELDS, *more]), "transcribe", ENGLISH) == fallback
    own = [("logprob_threshold", "-2"), ("fallback_temperatures[]", "0.5")]
    asked = {**fallback, "logprob_threshold": "-2", "fallback_temperatures": ["0.5"]}
    assert parameters_of(SpeechBody.of([*FIELDS, *own]), "transcribe", ENGLISH) == asked
    for off, left in ((GREEDY, {}), (("best_of", "2"), {}), (("temperature", "0.1"), SILENCE)):
        found = parameters_of(SpeechBody.of([*FIELDS, off]), "transcribe", ENGLISH)
        assert "fallback_temperatures" not in found
        assert {name: found[name] for name in SILENCE if name in found} == left


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (FIELDS[1:], "file: not set, but required"),
        (FIELDS[:1], "model: not set, but required"),
        (
            [*FIELDS, ("response_format", "xml")],
            "response_format: got 'xml', wanted 'json', ",
        ),
        ([*FIELDS, ("temperature", "hot")], "temperature: got 'hot', wanted number"),
        ([*FIELDS, ("temperature", "nan")], "temperature: got 'nan'"),
        (
            [*FIELDS, ("timestamp_granularities[]", "line")],
            r"timestamp_granularities\[0\]: got 'line', wanted 'word' or 'segment'",
        ),
        (
            [*FIELDS, ("timestamp_granularities[]", "segment")],
            "timestamp_granularities: got it with response_format json, wanted it with verbose",
        ),
        (
            [*FIELDS, ("stream", "true")],
            "stream: got 'true', wanted false, as an answer of this endpoint comes whole; remove",
        ),
        ([*FIELDS, ("stream", "maybe")], "stream: got 'maybe', wanted false, as"),
        ([*FIELDS, ("n", "2")], "n: got '2', wanted none, as an answer of this endpoint is one te"),
        ([*FIELDS, ("num_return_sequences", "2")], "num_return_sequences: got '2', wanted none"),
        ([*FIELDS, ("logprobs", "5")], "logprobs: got '5', wanted none, .*; remove it, or ask"),
        ([*FIELDS, ("logprobs", "0")], "logprobs: got '0'"),
        ([*FIELDS, ("logprobs", "true")], "logprobs: got 'true'"),
        ([*FIELDS, ("logprobs[]", "1")], r"logprobs: got \['1'\]"),
        ([*FIELDS, ("logit_bias", '{"5": 1}')], "logit_bias: got .*, wanted none, as a field of a"),
        ([*FIELDS, ("bad_words_ids[]", "[5]")], "bad_words_ids: got .*, wanted none, as a field"),
        (
            [*FIELDS, ("task", "translate")],
            'task: got .translate., wanted "transcribe" or none, .*ask /v1/audio/translations',
        ),
        (
            [*FIELDS, ("return_timestamps", "true")],
            "return_timestamps: got 'true', wanted false or none, as response_format says it; .*ve",
        ),
        (
            [*FIELDS, ("return_timestamps", "word"), ("response_format", "verbose_json")],
            r"return_timestamps: got 'word', wanted true or none.*timestamp_granularities\[\]=word",
        ),
        (
            [*FIELDS, ("return_timestamps", "false"), ("response_format", "vtt")],
            "return_timestamps: got 'false', wanted true or none",
        ),
        ([*FIELDS, ("model", "w")], "model: got it twice, wanted it once"),
        ([("file", "text"), *FIELDS[1:]], "file: got a text, wanted a file, with its name"),
        ([*FIELDS, ("prompt", b"file")], "prompt: got a file, wanted a text"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(fields, message):
    assert re.match(message, refusal(fields))


def refusal(fields: list[tuple[str, str | bytes]]) -> str:
    try:
        parameters_of(SpeechBody.of(fields), "transcribe", KNOWS_TASKS)
    except ValidationError as error:
        return str(invalid(error).body["error"]["message"])
    except InvalidInput as error:
        return str(error)
    return ""


SAID = [Said(0.0, 1.5, " Hello."), Said(1.5, None, " So --> long\n\nso"), Said(3661.2, 3662.0, "x")]


def test_subtitles_have_a_number_a_time_and_a_text():
    assert srt(SAID, 4000.0) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello.\n\n"
        "2\n00:00:01,500 --> 01:01:01,200\nSo -> long\nso\n\n"
        "3\n01:01:01,200 --> 01:01:02,000\nx\n\n"
    )
    assert vtt(SAID[:1], 4000.0) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello.\n\n"
    assert vtt([], 1.0) == "WEBVTT\n\n"
    assert srt([Said(None, None, "a")], 2.5).startswith("1\n00:00:00,000 --> 00:00:02,500\na")


def test_every_part_has_a_beginning_and_an_end():
    assert spans(SAID, 4000.0) == [(0.0, 1.5), (1.5, 3661.2), (3661.2, 3662.0)]
    assert spans([Said(None, None, "a")], 2.5) == [(0.0, 2.5)]
    assert spans([Said(3.0, None, "a")], 2.5) == [(3.0, 3.0)]  # said behind the end


WINDOW = {"seek": 0, "avg_logprob": -0.5, "temperature": 0.2, "no_speech_prob": 0.01}
LATER = {"seek": 200, "avg_logprob": -0.7}


class Writes:
    """A transport to a model that has heard three segments in two windows, with words where they
    are asked for."""

    def __init__(self) -> None:
        self.calls: list[Infer] = []

    async def stream(self, call: Infer, timeout_s: float) -> AsyncIterator[dict[str, np.ndarray]]:
        self.calls.append(call)
        segments = [
            {"start": 0.0, "end": 1.0, "text": " One", "tokens": [1], **WINDOW},
            {"start": 1.0, "end": None, "text": " two.", "tokens": [2], **WINDOW},
            {"start": 2.0, "end": 2.1, "text": "a" * 99, "tokens": [3], **LATER},
        ]
        if b'"word"' in call.inputs["sampling_parameters"][0]:
            segments[0]["words"] = [{"word": " One", "start": 0.1, "end": 0.8}]
            segments[1]["words"] = [{"word": " two.", "start": 0.8, "end": 2.0}]
        yield {
            "text_output": np.array([b" One two."], np.object_),
            "segments": np.array([json.dumps(segments).encode()], np.object_),
            "language": np.array([b"de"], np.object_),
            "duration": np.array([2.25], np.float32),
            "num_input_tokens": np.array([1500]),
            "num_output_tokens": np.array([4]),
        }


def answered(*granularities: str, **fields: str) -> Any:
    named = [("timestamp_granularities[]", each) for each in granularities]
    body = SpeechBody.of([*FIELDS, *fields.items(), *named])
    transport: Any = Writes()
    parameters = parameters_of(body, "transcribe", KNOWS_TASKS)
    outputs = asyncio.run(transcribed(transport, KNOWS_TASKS, body, parameters, {"tenant": "a"}))
    [call] = transport.calls
    assert call.inputs["audio"][0] == b"RIFF"
    assert call.parameters == {"tenant": "a"}
    return answer(outputs, body, "transcribe")


def test_answers_have_the_format_that_is_asked_for():
    usage = {"type": "duration", "seconds": 2.25}
    assert json.loads(answered().body) == {"text": "One two.", "usage": usage}
    plain = answered(response_format="text")
    assert (plain.body, plain.media_type) == (b"One two.\n", "text/plain")
    assert b"00:00:01,000 --> 00:00:02,000\ntwo." in answered(response_format="srt").body
    vtt_file = answered(response_format="vtt")
    assert (vtt_file.body[:6], vtt_file.media_type) == (b"WEBVTT", "text/vtt")
    verbose = json.loads(answered(response_format="verbose_json", temperature="0.5").body)
    assert (
        verbose.items()
        >= {
            "task": "transcribe",
            "language": "german",
            "duration": 2.25,
            "text": "One two.",
            "usage": usage,
        }.items()
    )
    assert "words" not in verbose


def test_segments_have_what_openai_documents():
    """Those of one window the same, but their place, times, text and tokens."""
    verbose = json.loads(answered(response_format="verbose_json", temperature="0.5").body)
    first, second, later = verbose["segments"]
    assert first == {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": 1.0,
        "text": " One",
        "tokens": [1],
        "temperature": 0.2,
        "avg_logprob": -0.5,
        "compression_ratio": len("One two.") / len(zlib.compress(b"One two.")),
        "no_speech_prob": 0.01,
    }
    own = {"id": 1, "start": 1.0, "end": 2.0, "text": " two.", "tokens": [2]}
    assert second == {**first, **own}
    ratio = 99 / len(zlib.compress(b"a" * 99))
    assert later.items() >= {"seek": 200, "avg_logprob": -0.7, "temperature": 0.5}.items()
    assert (later["compression_ratio"], "no_speech_prob" in later) == (ratio, False)


@pytest.mark.parametrize("granularities", [("word",), ("segment",), ("word", "segment")], ids=str)
def test_words_and_segments_come_where_they_are_named(granularities):
    verbose = json.loads(answered(*granularities, response_format="verbose_json").body)
    assert {"words", "segments"} & verbose.keys() == {f"{each}s" for each in granularities}
    assert all("words" not in each for each in verbose.get("segments", ()))
    assert verbose.get("words", []) == [
        {"word": "One", "start": 0.1, "end": 0.8},
        {"word": "two.", "start": 0.8, "end": 2.0},
    ] * ("word" in granularities)
