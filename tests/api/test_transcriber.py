"""`Transcriber` writes what the engine writes, of files and samples, in the order of a list."""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterator
from pathlib import Path

import fusewire
import numpy as np
import pytest
from fusewire.api.transcriber import Transcriber
from fusewire.errors import CheckpointError, InvalidInput
from fusewire.generation.prompt import AudioFeatures

from tests.audio.waves import spoken
from tests.engine.generating import ask, tiny_folder
from tests.models.tiny_whisper import POSITIONS, tiny_whisper_folder

RATE = 16000
ASKED = {"max_new_tokens": 16, "repetition_penalty": 1.6, "no_repeat_ngram_size": 3}


def clips(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return list(rng.normal(0, 0.1, (count, RATE // 2)).astype(np.float32))


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory) -> Iterator[Transcriber]:
    folder = tmp_path_factory.mktemp("whisper")
    tiny_whisper_folder(folder, seed=2)
    options = {"kv_cache_mib": 1, "max_sequences": 4, "max_audio_seconds": 3}
    with fusewire.Transcriber(folder, device="cpu", **options) as made:
        yield made


def test_a_list_is_answered_in_order(transcriber):
    many = clips(6)
    found = transcriber.transcribe(many, return_timestamps=True, use_tqdm=False, **ASKED)
    engine = transcriber.engine
    for audio, one in zip(many, found, strict=True):
        alone = ask(
            engine, AudioFeatures(engine.log_mel.features(audio)), return_timestamps=True, **ASKED
        )[0].finish()
        assert one.text == alone.text()
        assert one.language == alone.deltas[-1].language
        assert "".join(segment.text for segment in one.segments) == one.text
        assert one.segments[0].start is not None
        assert one.output.usage.prompt_tokens == POSITIONS
    assert len({one.text for one in found}) > 1


def test_words_make_up_their_segments(transcriber):
    [noise] = clips(1)
    many = [noise, np.tile(noise, 5)]
    found = transcriber.transcribe(many, return_timestamps="word", use_tqdm=False, **ASKED)
    plain = transcriber.transcribe(many, return_timestamps=True, use_tqdm=False, **ASKED)
    for audio, one, other in zip(many, found, plain, strict=True):
        assert one.text == other.text
        assert {segment.words for segment in other.segments} == {None}
        words = [word for segment in one.segments for word in segment.words]
        assert "".join(word.word for word in words) == one.text
        assert all(word.start <= word.end for word in words)
        assert len(audio) / RATE - 1 < words[-1].end <= len(audio) / RATE


def test_long_audio_inputs_have_segments_to_their_end(transcriber):
    """More of them than are heard at once."""
    [noise] = clips(1)
    many = [np.tile(noise, 5 + index % 2) for index in range(12)]
    found = transcriber.transcribe(many, language="de", use_tqdm=False, **ASKED)
    assert {one.text for one in found[::2]} == {found[0].text}
    assert {one.segments for one in found} == {None}
    [one] = transcriber.transcribe(many[0], language="de", return_timestamps=True, **ASKED)
    assert one.text == found[0].text == "".join(segment.text for segment in one.segments)
    assert one.segments[-1].start > 1
    assert one.output.usage.prompt_tokens == 5 * POSITIONS // 2
    assert one.output.usage.completion_tokens == len(one.output.outputs[0].token_ids)


def test_segments_tell_of_the_window_that_they_were_heard_in(transcriber):
    long = np.tile(clips(1)[0], 5)
    asked = {"return_timestamps": True, "use_tqdm": False, **ASKED}
    [plain] = transcriber.transcribe(long, **asked)
    frames = [segment.seek for segment in plain.segments]
    assert frames == sorted(frames)
    assert frames[0] == 0 < frames[-1] < len(long) / RATE * 100
    assert len({segment.avg_logprob for segment in plain.segments}) == len(set(frames)) > 1
    assert {segment.no_speech_prob for segment in plain.segments} == {None}
    for threshold, unlikely in ((-100.0, False), (0.0, True)):
        thresholds = {"logprob_threshold": threshold, "no_speech_threshold": 1.0}
        [judged] = transcriber.transcribe(long, temperature=0.0, **thresholds, **asked)
        assert {segment.temperature for segment in judged.segments} == {0.0}
        rated = {segment.no_speech_prob for segment in judged.segments}
        assert all(0 < each < 1 for each in rated) if unlikely else rated == {None}


def test_a_file_its_path_and_its_samples_are_the_same(transcriber, tmp_path: Path):
    data = spoken(clips(1)[0])
    path = tmp_path / "speech.wav"
    path.write_bytes(data)
    samples = np.frombuffer(data[44:], "<i2").astype(np.float32) / 32768
    options = {"language": "english", "use_tqdm": False, **ASKED}
    with path.open("rb") as file, path.open("rb") as other:
        many = [data, bytearray(data), path, str(path), file, samples]
        found = [*transcriber.transcribe(many, **options)]
        found += transcriber.transcribe(other, **options)
    found += transcriber.transcribe(data, **options)
    assert len({one.text for one in found}) == 1
    assert {one.language for one in found} == {"en"}
    assert found[0].segments is None


@pytest.mark.parametrize(
    ("audio", "options", "message"),
    [
        ([b"no"], {}, r"audio\[0\]: audio: got 2 bytes of another format"),
        ([b"no", np.zeros(9)], {}, r"audio\[0\]: audio: got 2 bytes of another format"),
        ([b"no", "missing.wav"], {}, r"audio\[1\]: audio: got No such file"),
        (["missing.wav"], {}, r"audio\[0\]: audio: got No such file or directory: missing.wav"),
        ([5], {}, r"audio\[0\]: audio: got int, wanted an audio file"),
        (None, {}, "audio: got None, wanted a list of audio files; give one"),
        ({"array": []}, {}, r"audio\[0\]: audio: got dict, wanted an audio file"),
        (io.StringIO("text"), {}, r"audio\[0\]: audio: got a file that is open as text, .*\"rb\""),
        (np.tile(clips(1)[0], 5), {"logprobs": 1}, r"audio\[0\]: logprobs: got 1, wanted none"),
        ([np.zeros(3 * RATE + 1, np.float32)], {}, r"audio\[0\]: audio: got 48001 samples"),
        ([np.zeros(9, np.float32)], {"language": "tlh"}, "language: got 'tlh'"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_heard_is_refused(transcriber, audio, options, message):
    with pytest.raises(InvalidInput, match=message):
        transcriber.transcribe(audio, use_tqdm=False, **options)


def test_audio_that_cannot_be_heard_takes_no_other_along(transcriber):
    many = [clips(1)[0], b"no", np.zeros(9, np.float32)]
    with pytest.raises(fusewire.IncompleteOutputs, match=r"^audio\[1\]: audio: .*1 of 3") as error:
        transcriber.transcribe(many, use_tqdm=False, **ASKED)
    assert isinstance(error.value.errors[1], InvalidInput)
    assert [each is None for each in error.value.outputs] == [False, True, False]


def test_few_of_many_audio_inputs_are_in_memory_at_once(transcriber, monkeypatch):
    """However many there are: what waits as features is no more than what runs."""
    alive: weakref.WeakSet[AudioFeatures] = weakref.WeakSet()
    most, read = [0], Transcriber._features

    def noted(self, audio):
        made = read(self, audio)
        alive.add(made)
        most.append(len(alive))
        return made

    monkeypatch.setattr(Transcriber, "_features", noted)
    many = clips(40)
    found = transcriber.transcribe(many, use_tqdm=False, language="de", **ASKED)
    assert len(found) == len(most) - 1 == 40
    assert max(most) <= 3 * 4  # of max_sequences


def test_audio_that_fails_while_computing_is_named(transcriber):
    with pytest.raises(fusewire.IncompleteOutputs, match=r"^audio\[0\]: timeout: .*2 of 2 failed"):
        transcriber.transcribe(clips(2), timeout_seconds=1e-9, use_tqdm=False, **ASKED)


def test_a_model_of_texts_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"got .gpt2., which writes texts, .* with LLM$"):
        fusewire.Transcriber(tiny_folder(tmp_path), device="cpu")
