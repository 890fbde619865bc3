"""Tokens of an audio input have the times that transformers finds, and make up its words."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import CheckpointError, ComputeFailed, InvalidInput
from fusewire.generation.prompt import AudioFeatures
from fusewire.generation.speech_words import timed_words
from numpy.typing import NDArray
from transformers.models.whisper.tokenization_whisper import _decode_asr

from tests.engine.generating import Answer, ask, between_steps, pass_steps
from tests.engine.speech.hearing import (
    LIVELY,
    SEED,
    WINDOW,
    clips,
    edit_generation,
    settings,
    tokens_of,
)
from tests.models.tiny_whisper import (
    EOS,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TIMESTAMPS,
    as_transformers,
    random_features,
    tiny_whisper_folder,
)
from tests.places import CPU, GPU_FP32

ASKED: dict[str, Any] = {"language": "de", "task": "transcribe", "max_new_tokens": 30, **LIVELY}
TIMED: dict[str, Any] = {"return_timestamps": "word", **ASKED}
FRAME = 0.02  # seconds: where sums of costs are nearly equal, rounding decides between two


def timed_by(model: Any, features: NDArray[np.float32], heard: int, **options: Any) -> Any:
    """Tokens of transformers and when each has been said, of audio that fills so many frames."""
    device = next(model.parameters()).device
    mask = (torch.arange(len(features), device=device) < heard).long()[None]
    options = {"num_beams": 1, "do_sample": False, **options}
    if len(features) <= WINDOW:
        options |= {"force_unique_generate_call": True, "return_dict_in_generate": True}
    with torch.no_grad():
        out = model.generate(
            as_transformers(features, device),
            attention_mask=mask,
            return_timestamps=True,
            return_token_timestamps=True,
            return_segments=True,
            **options,
        )
    if len(features) > WINDOW:  # those beside the sequences count from each window's beginning
        parts = out["segments"][0]
        return [
            [each for part in parts for each in part[name].tolist()]
            for name in ("tokens", "token_timestamps")
        ]
    tokens, times = (out[name][0].tolist() for name in ("sequences", "token_timestamps"))
    begun = tokens.index(START) + 3 if START in tokens else 0
    return tokens[begun:], times[begun:]


def times_of(answer: Answer) -> list[tuple[float, float]]:
    return [time for delta in answer.deltas for each in delta.segments or () for time in each.times]


def words_and_times(tokens: list[int], ends: list[float]) -> list[tuple[float, float]]:
    """When each token that is a word is said: it begins where the one before ends."""
    spans = zip(tokens, [0.0, *ends], ends, strict=False)
    return [(begin, end) for token, begin, end in spans if token < EOS]


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_times_are_those_of_transformers(tmp_path, num_beams, place):
    """Of one window, and of many, of which the last is not full; beside others, some of which want
    no times."""
    reference = tiny_whisper_folder(tmp_path, seed=SEED).to(place.device)
    chosen = random.Random(num_beams)
    with GenerationEngine(tmp_path, settings(dtype=place.dtype), place.device) as engine:
        asked = []
        for features in clips([WINDOW] * 5 + [250, 430, 655]):
            heard = len(features)
            if heard == WINDOW:
                heard = chosen.choice([WINDOW, 80, 31])
            audio = AudioFeatures(features, heard)
            ask(engine, AudioFeatures(random_features(1, 9)[0]), return_timestamps=True, **ASKED)
            asked.append((audio, ask(engine, audio, num_beams=num_beams, **TIMED)[0]))
            pass_steps(engine, chosen.randint(1, 4))
        moved = 0
        for audio, answer in asked:
            answer.finish()
            tokens, ends = timed_by(
                reference, audio.features, audio.heard, num_beams=num_beams, **ASKED
            )
            own = tokens_of(answer)
            assert own == tokens[: len(own)]
            theirs = words_and_times(own, ends)
            np.testing.assert_allclose(times_of(answer), theirs, 0, FRAME + 1e-6)
            moved += len({end for _, end in theirs})
        assert moved > 40  # or any times would do
        assert between_steps(engine, lambda: engine.cache.used) == 0


@pytest.mark.parametrize(
    "options", [{"n": 3, "temperature": 1.0, "seed": 4}, {"n": 2, "num_beams": 3}]
)
def test_each_of_several_texts_has_its_own(engine, options):
    [features] = random_features(1)
    answer = ask(engine, AudioFeatures(features), **options, **TIMED)[0].finish(options["n"])
    lasts = [delta for delta in answer.deltas if delta.finish_reason is not None]
    assert len({tuple(delta.token_ends) for delta in lasts}) == options["n"]
    for delta in lasts:
        assert len(delta.token_ends) == delta.num_output_tokens
        assert list(delta.token_ends) == sorted(delta.token_ends)


def test_text_that_stands_before_has_no_times(folder, engine):
    reference = tiny_whisper_folder(folder, seed=SEED)
    for features in [*random_features(1, seed=5), *clips([320], seed=4)]:
        options = {**ASKED, "condition_on_prev_tokens": True, "max_new_tokens": 24}
        answer = ask(
            engine,
            AudioFeatures(features),
            prompt_ids=(11, 23, 42),
            return_timestamps="word",
            **options,
        )[0].finish()
        tokens, ends = timed_by(
            reference,
            features,
            len(features),
            prompt_ids=torch.tensor((PREVIOUS, 11, 23, 42)),
            **options,
        )
        own = tokens_of(answer)
        assert own == tokens[: len(own)]
        np.testing.assert_allclose(times_of(answer), words_and_times(own, ends), 0, FRAME + 1e-6)


class AsTransformers:
    """What its pipeline asks a tokenizer."""

    language, all_special_ids, eos_token_id = None, range(EOS, TIMESTAMPS), EOS

    def __init__(self, engine: GenerationEngine) -> None:
        self._decode = engine.tokenizer.decode

    def decode(self, ids: list[int], **_: Any) -> str:
        return self._decode(list(ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        names = {"<|notimestamps|>": NO_TIMESTAMPS, "<|startofprev|>": PREVIOUS}
        return {**names, "<|startoftranscript|>": START}[token]

    def _strip_prompt(self, token_ids: list[int], *_: int) -> list[int]:
        return token_ids


def test_words_are_those_of_transformers_pipeline(folder, engine):
    reference = tiny_whisper_folder(folder, seed=SEED)
    found = 0
    for features in random_features(6):
        tokens, ends = timed_by(reference, features, WINDOW, **ASKED)
        output = {"tokens": np.array([tokens]), "token_timestamps": np.array([ends])}
        text, more = _decode_asr(
            AsTransformers(engine),
            [output],
            return_timestamps="word",
            return_language=False,
            time_precision=0.02,
        )
        answer = ask(engine, AudioFeatures(features), **TIMED)[0].finish()
        words = [
            word
            for each in answer.deltas[-1].segments
            for word in timed_words(each, "de", engine.tokenizer.decode_as_spelled)
        ]
        assert "".join(each.word for each in words) == text == answer.text()
        assert [each.word for each in words] == [each["text"] for each in more["chunks"]]
        np.testing.assert_allclose(
            [(each.start, each.end) for each in words],
            [each["timestamp"] for each in more["chunks"]],
            0,
            FRAME + 1e-6,
        )
        found += len(words)
    assert found > 12


def test_nobody_else_has_times(engine):
    for timestamps in (False, True):
        answer = ask(
            engine, AudioFeatures(random_features(1)[0]), return_timestamps=timestamps, **ASKED
        )[0].finish()
        assert {delta.token_ends for delta in answer.deltas} == {None}
        assert {each.times for each in answer.deltas[-1].segments} == {None}


def test_an_audio_input_is_encoded_once_for_its_text_and_its_times(engine, monkeypatch):
    encoded, encode = [], engine.model.encode
    monkeypatch.setattr(
        engine.model, "encode", lambda batch, cache: encoded.append(batch) or encode(batch, cache)
    )
    answer = ask(engine, AudioFeatures(random_features(1, seed=77)[0]), **TIMED)[0].finish()
    assert answer.deltas[-1].token_ends
    assert len(encoded) == 1


@pytest.mark.parametrize("beams", [1, 3])
def test_times_that_cannot_be_found_end_their_request_alone(engine, monkeypatch, beams):
    other = ask(engine, AudioFeatures(random_features(1)[0]), **ASKED)[0]
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "head_weights", lambda *_: 1 / 0)
        with pytest.raises(ComputeFailed):
            ask(engine, AudioFeatures(random_features(1)[0]), num_beams=beams, **TIMED)[0].finish()
    assert other.finish().tokens()
    assert between_steps(engine, lambda: engine.cache.used) == 0


@pytest.mark.parametrize("heads", [..., [], [[2, 0]], [[0, 1], [1, 3]]], ids=str)
def test_a_folder_without_heads_of_its_decoder_has_no_times(tmp_path, heads):
    """Distilled models name those of the model that they were made of."""
    tiny_whisper_folder(tmp_path)
    edit_generation(tmp_path, alignment_heads=heads)
    with GenerationEngine(tmp_path, settings()) as engine:
        message = "return_timestamps: got word, wanted true or false for a model whose gen.* no al"
        with pytest.raises(InvalidInput, match=message):
            ask(engine, AudioFeatures(random_features(1)[0]), **TIMED)
        answer = ask(engine, AudioFeatures(random_features(1)[0]), return_timestamps=True, **ASKED)[
            0
        ]
        assert answer.finish().deltas[-1].segments


@pytest.mark.parametrize("heads", ["all", 5, [[0]], [[0, -1]], [[0, True]], [0, 1]], ids=str)
def test_heads_that_are_none_are_refused_with_the_folder(tmp_path, heads):
    tiny_whisper_folder(tmp_path)
    edit_generation(tmp_path, alignment_heads=heads)
    with pytest.raises(CheckpointError, match=r"alignment_heads: got .*, wanted a list of .layer"):
        GenerationEngine(tmp_path, settings())
