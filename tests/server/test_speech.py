"""A real server with a Whisper folder: audio in, texts out, whole and streamed."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fusewire_client
import httpx2
import numpy as np
import openai
import pytest
import soundfile
import soxr
import torch
from fusewire.errors import ConfigurationError
from fusewire.serving.asking import ask
from fusewire.serving.config import Deployment, ServerSettings
from fusewire.serving.repository import import_folder
from fusewire.serving.supervisor.server import Server
from openai.types.audio import TranscriptionSegment
from transformers import WhisperFeatureExtractor

from tests.audio.waves import spoken
from tests.models.tiny_whisper import EOS, POSITIONS, SECONDS, TIMESTAMPS, tiny_whisper_folder
from tests.server.streaming import generate, generate_stream
from tests.tolerance import PIPELINE_SCORE

RATE = 16000
ASKED: dict[str, Any] = {
    "max_new_tokens": 16,
    "repetition_penalty": 1.6,
    "no_repeat_ngram_size": 3,
    "language": "de",
}


def clips() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    seconds = np.arange(RATE) / RATE
    tones = [np.sin(2 * np.pi * pitch * seconds) for pitch in (200, 900, 3000)]
    made = [0.3 * tone + rng.normal(0, 0.05, RATE) for tone in tones]
    # As a file of 16 bits has them.
    return [np.round(audio * 32767).astype(np.float32)[: RATE - 99] / 32768 for audio in made]


def files() -> list[bytes]:
    return [spoken(np.round(audio * 32768) / 32767) for audio in clips()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return tiny_whisper_folder(folder, seed=2)


@pytest.fixture(scope="module")
def transcripts(folder: Path, model: Any) -> list[list[int]]:
    """Of transformers, with timestamps."""
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    found = []
    for audio in clips():
        features = extractor(audio, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.no_grad():
            made = model.generate(
                features,
                task="transcribe",
                return_timestamps=True,
                force_unique_generate_call=True,
                return_dict_in_generate=True,
                **ASKED,
            )
        found.append([token for token in made.sequences[0, 3:].tolist() if token != EOS])
    return found


@pytest.fixture(scope="module")
def server(
    folder: Path, model: Any, tmp_path_factory: pytest.TempPathFactory, device: str
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("repository")
    settings = {"dtype": "float32", "max_sequences": 8, "max_audio_seconds": 4}
    deployment = Deployment(device=device)
    import_folder(folder, root, name="whisper", settings=settings, deployment=deployment)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
    watched = ServerSettings(watch_interval_s=1, exit_timeout_s=2, **ports)
    with Server([root], watched, report=print) as server:
        yield server


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[fusewire_client.Client]:
    at = server.endpoint
    port = at.grpc_port if request.param == "grpc" else at.http_port
    with fusewire_client.Client(f"{at.reachable}:{port}", protocol=request.param) as client:
        yield client


def words(tokens: list[int], folder: Path) -> str:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text: str = tokenizer.decode([token for token in tokens if token < EOS])
    return text


def test_what_is_said_is_what_transformers_writes(client, transcripts, folder) -> None:
    found = client.transcribe(files(), return_timestamps=True, details=True, **ASKED)
    for one, tokens in zip(found, transcripts, strict=True):
        assert one.text == words(tokens, folder)
        assert one.language == "de"
        assert one.usage.prompt_tokens == POSITIONS
        stamps = [token for token in tokens if token >= TIMESTAMPS]
        assert one.segments[0].start == pytest.approx(
            (stamps[0] - TIMESTAMPS) * SECONDS / POSITIONS, PIPELINE_SCORE
        )
        assert "".join(segment.text for segment in one.segments) == one.text
    assert len({one.text for one in found}) > 1


def test_samples_files_and_paths_are_the_same_audio(client, tmp_path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(files()[1])
    with path.open("rb") as file:
        many = (files()[1], path, clips()[1], file)
        texts = [client.transcribe(each, **ASKED) for each in many]
    assert texts[0]
    assert len(set(texts)) == 1
    with pytest.raises(fusewire_client.InvalidArgument, match="open as text"):
        client.transcribe(io.StringIO("text"), **ASKED)


def test_other_rates_and_formats_are_the_same_audio(client) -> None:
    pitch = np.sin(2 * np.pi * 440 * np.arange(RATE // 2) / RATE)
    wave = spoken(0.3 * pitch.astype(np.float32))
    flac = io.BytesIO()
    soundfile.write(flac, np.frombuffer(wave[44:], "<i2"), RATE, format="FLAC")
    assert client.transcribe(wave, **ASKED) == client.transcribe(flac.getvalue(), **ASKED) != ""
    faster = spoken(soxr.resample(0.3 * pitch, RATE, 44100).astype(np.float32), rate=44100)
    assert client.transcribe(faster, **ASKED)


def test_a_text_comes_in_pieces_and_its_segments_with_the_last(client) -> None:
    options = {"return_timestamps": True, "details": True, **ASKED}
    pieces = list(client.transcribe(files()[0], stream=True, **options))
    whole = client.transcribe(files()[0], **options)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.segments for piece in pieces] == [*[None] * (len(pieces) - 1), whole.segments]


def test_long_audio_comes_window_by_window(client, model, folder) -> None:
    audio = np.concatenate([*clips(), *clips()[:1]])
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(
        audio, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest"
    ).input_features
    with torch.no_grad():
        tokens = model.generate(
            features, task="transcribe", return_timestamps=True, num_beams=1, **ASKED
        )
    found = client.transcribe(audio, return_timestamps=True, details=True, **ASKED)
    assert found.text == words(tokens[0].tolist(), folder)
    assert found.usage.prompt_tokens == (len(audio) // 160 + 1) // 2
    assert found.usage.completion_tokens == tokens.shape[1]
    pieces = list(client.transcribe(audio, stream=True, details=True, **ASKED))
    assert len(pieces) > 2
    assert "".join(piece.text for piece in pieces) == found.text
    options = {"return_timestamps": True, "details": True, **ASKED}
    pieces = list(client.transcribe(audio, stream=True, **options))
    assert [each for piece in pieces for each in piece.segments] == found.segments
    frames = [segment.seek for segment in found.segments]
    assert frames == sorted(frames)
    assert len({segment.avg_logprob for segment in found.segments}) == len(set(frames)) > 1


def test_words_have_times_where_they_are_asked_for(client) -> None:
    audio = np.concatenate(clips())
    options = {"return_timestamps": "word", "details": True, **ASKED}
    found = client.transcribe(audio, **options)
    words = [word for segment in found.segments for word in segment.words]
    assert "".join(word.word for word in words) == found.text
    assert all(0 <= word.start <= word.end <= len(audio) / RATE for word in words)
    pieces = list(client.transcribe(audio, stream=True, **options))
    assert [each for piece in pieces for each in piece.segments] == found.segments
    plain = client.transcribe(audio, **{**options, "return_timestamps": True})
    assert {segment.words for segment in plain.segments} == {None}


def test_beams_samples_and_the_language_that_is_heard(client) -> None:
    asked = {name: value for name, value in ASKED.items() if name != "language"}
    found = client.transcribe(files()[0], num_beams=3, n=2, details=True, **asked)
    assert len(found) == 2
    assert found[0].score >= found[1].score
    assert found[0].language in ("en", "de", "fr")
    assert found[0].segments is None
    sampled = {"temperature": 1.0, "seed": 5, **asked}
    assert client.transcribe(files()[0], **sampled) == client.transcribe(files()[0], **sampled)


def test_a_file_goes_as_base64_and_segments_come_as_json(server, transcripts, folder) -> None:
    body = {"audio": base64.b64encode(files()[0]).decode(), "return_segments": True}
    body |= {"return_language": True, "parameters": ASKED}
    status, found = generate(server, "whisper", body)
    assert (status, found["language"]) == (200, "de")
    assert found["text_output"] == words(transcripts[0], folder)
    [first, *_] = json.loads(found["segments"])
    assert {*first} == {"start", "end", "text", "tokens", "seek", "avg_logprob"}
    body |= {"stream": True, "return_segments": False, "return_language": False}
    assert "".join(event["text_output"] for event in generate_stream(server, "whisper", body))


@pytest.fixture(scope="module")
def door(server: Server) -> Iterator[openai.OpenAI]:
    assert server.openai is not None
    base = f"http://{server.openai.address}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client:
        yield client


ASKED_AS_FORM: dict[str, Any] = {
    "model": "whisper",
    "language": "de",
    "extra_body": {
        "do_sample": "false",  # no text of a random model is good
        **{name: value for name, value in ASKED.items() if name != "language"},
    },
}


def test_openais_client_transcribes_and_translates(door, client, transcripts, folder) -> None:
    path = folder / "speech.wav"
    path.write_bytes(files()[0])
    with path.open("rb") as file:
        found = door.audio.transcriptions.create(file=file, **ASKED_AS_FORM)
    whole = client.transcribe(files()[0], task="transcribe", **ASKED)
    assert found.text == whole.strip() != ""
    assert found.usage.seconds == pytest.approx((RATE - 99) / RATE, abs=1e-3)
    asked = {name: value for name, value in ASKED_AS_FORM.items() if name != "language"}
    english = door.audio.translations.create(file=("a.wav", files()[0]), **asked)
    heard = {name: value for name, value in ASKED.items() if name != "language"}
    assert english.text == client.transcribe(files()[0], task="translate", **heard).strip()
    judged = {"logprob_threshold": "-1000", "compression_ratio_threshold": "1000"}  # all are good
    verbose = door.audio.transcriptions.create(
        file=("a.wav", files()[0]),
        response_format="verbose_json",
        timestamp_granularities=["segment"],
        **{**ASKED_AS_FORM, "extra_body": {**ASKED, **judged}},
    )
    assert verbose.text == words(transcripts[0], folder).strip()
    assert (verbose.language, verbose.segments[0].id) == ("german", 0)
    for segment in verbose.segments:
        assert {*segment.model_dump()} == {*TranscriptionSegment.model_fields}
        assert (segment.seek, segment.temperature) == (0, 0)
        assert segment.avg_logprob < 0 < segment.no_speech_prob < 1
        assert segment.compression_ratio > 0
    stamped = [token for token in transcripts[0] if token < EOS]
    assert [token for segment in verbose.segments for token in segment.tokens] == stamped


def test_a_prompt_stands_before_the_text(door, client, folder) -> None:
    found = door.audio.transcriptions.create(
        file=("a.wav", files()[1]), prompt="!! #", **ASKED_AS_FORM
    )
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(" !! #", add_special_tokens=False).ids
    options = {"task": "transcribe", **ASKED}
    assert found.text == client.transcribe(files()[1], prompt_ids=ids, **options).strip()
    assert found.text != client.transcribe(files()[1], **options).strip()


def test_subtitles_come_as_text(door) -> None:
    audio = np.concatenate([*clips(), *clips()[:1]])
    wave = spoken(np.round(audio * 32768) / 32767)
    for form, begin in (("srt", "1\n00:00:00,"), ("vtt", "WEBVTT\n\n00:00:00."), ("text", "")):
        text = door.audio.transcriptions.create(
            file=("a.wav", wave), response_format=form, **ASKED_AS_FORM
        )
        assert isinstance(text, str)
        assert text.startswith(begin)
        assert text.endswith("\n")
    assert "00:00:03" in door.audio.transcriptions.create(
        file=("a.wav", wave), response_format="srt", **ASKED_AS_FORM
    )


@pytest.mark.parametrize(
    ("file", "options", "status", "message"),
    [
        (b"MThd.", {}, 400, "file: got 5 bytes of another format"),
        (b"", {}, 400, "file: got 0 bytes of another format"),
        (spoken(np.zeros(9, np.float32)), {"model": "other"}, 404, "model: got 'other'"),
        (spoken(np.zeros(9, np.float32)), {"language": "tlh"}, 400, "language: got 'tlh'"),
        (
            spoken(np.zeros(9, np.float32)),
            {"prompt": "a<|de|>"},
            400,
            "prompt: got id 83, wanted ids of text tokens",
        ),
        (
            spoken(np.zeros(9, np.float32)),
            {"extra_body": {"hat": "1"}},
            400,
            "hat: got",
        ),
        (spoken(np.zeros(5 * RATE, np.float32)), {}, 400, "file: got 80000 samples, 5.0 s"),
        (bytes(26 << 20), {}, 413, "file: got a body of over"),
    ],
    ids=["other", "empty", "model", "language", "prompt", "unknown", "long", "large"],
)
def test_openais_client_is_told_what_is_wrong(door, file, options, status, message) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as error:
        door.audio.transcriptions.create(file=("a.wav", file), **{**ASKED_AS_FORM, **options})
    assert error.value.status_code == status
    assert door.audio.transcriptions.create(file=("a.wav", files()[0]), **ASKED_AS_FORM).text


def test_another_body_than_a_form_is_refused(server, door) -> None:
    url = f"http://{server.openai.address}/v1/audio/transcriptions"
    refused = httpx2.post(url, json={"model": "whisper"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("Content-Type: got application/json")
    page = {"Origin": "http://evil.example"}
    wave = {"file": ("a.wav", files()[0])}
    foreign = httpx2.post(url, headers=page, files=wave, data={"model": "whisper"})
    assert foreign.status_code == 403
    assert [model.id for model in door.models.list()] == ["whisper"]


def test_the_command_line_transcribes(server, tmp_path, transcripts, folder) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(files()[0])
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    asked = {"return_timestamps": True, **ASKED}
    lines, records = ask("transcribe", [str(path)], [], address, "grpc", None, asked)
    assert lines == [words(transcripts[0], folder)]
    assert records[0]["language"] == "de"
    of_a_window = {"seek", "avg_logprob"}
    assert records[0]["segments"][0].keys() == {"start", "end", "text", *of_a_window}


@pytest.mark.parametrize(
    ("audio", "options", "message"),
    [
        (b"MThd no audio", {}, "audio: got .* of another format.*ffmpeg"),
        (b"", {}, "audio: got 0 bytes"),
        (spoken(np.zeros(9, np.float32), rate=999), {}, "audio: got audio at 999 Hz"),
        (
            np.zeros(4 * RATE + 1, np.float32),
            {},
            "samples: got 64001 samples, 4.0 s, wanted at most",
        ),
        (np.zeros(0, np.float32), {}, "samples: got"),
        (np.full(9, np.nan, np.float32), {}, "samples: got a number that is not finite"),
        (np.zeros(9, np.float32), {"language": "tlh"}, "language: got 'tlh', wanted one of"),
        (np.zeros(9, np.float32), {"num_beams": 0}, "num_beams: got 0"),
    ],
    ids=str,
)
def test_bad_audio_is_refused_and_leaves_others_alone(server, audio, options, message) -> None:
    address = f"{server.endpoint.reachable}:{server.endpoint.grpc_port}"
    with fusewire_client.Client(address) as client:
        before = client.transcribe(files()[2], **ASKED)
        with pytest.raises(fusewire_client.InvalidArgument, match=message):
            client.transcribe(audio, **options)
        assert client.transcribe(files()[2], **ASKED) == before


def test_an_audio_input_is_not_asked_of_a_model_of_texts(folder, model, tmp_path) -> None:
    with pytest.raises(ConfigurationError, match="task: got generate for whisper, a model of spee"):
        import_folder(folder, tmp_path, name="w", settings={"task": "generate"})
