"""A window whose text is no good is decoded again at the next temperature, and silence is left
out, as transformers has it."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import ComputeFailed, InvalidInput
from fusewire.generation.fallback import Fallback, compression_ratio
from fusewire.generation.prompt import AudioFeatures
from fusewire.generation.request import GenerationRequest
from fusewire.generation.speech import DecodedWindow
from numpy.typing import NDArray
from transformers.generation.logits_process import WhisperNoSpeechDetection
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from tests.engine.generating import Answer, ask, between_steps, held
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
    VOCABULARY,
    as_transformers,
    random_features,
    tiny_whisper_folder,
)
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE

ASKED: dict[str, Any] = {"language": "de", "task": "transcribe", "max_new_tokens": 24}
NEVER_GOOD: dict[str, Any] = {"logprob_threshold": 0.0}


def written_by(model: Any, features: NDArray[np.float32], **options: Any) -> list[int]:
    """Tokens of transformers, of one temperature."""
    with torch.no_grad():
        tokens: list[int] = model.generate(
            as_transformers(features, next(model.parameters()).device),
            return_timestamps=True,
            temperature=(0.0,),
            num_beams=1,
            **options,
        )[0].tolist()
    return tokens


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("conditioned", [False, True])
def test_silence_is_left_out_as_transformers_does(tmp_path, monkeypatch, place, conditioned):
    """Of windows that are all unlikely those above any threshold of the probability of no speech;
    of those that are likely none."""
    reference = tiny_whisper_folder(tmp_path, seed=SEED).to(place.device)
    options = {**ASKED, **LIVELY, "condition_on_prev_tokens": conditioned}
    features = clips([730], seed=3)[0]
    heard: list[float] = []
    is_silence = Fallback.is_silence
    monkeypatch.setattr(
        Fallback, "is_silence", lambda self, p: heard.append(p) or is_silence(self, p)
    )
    with GenerationEngine(tmp_path, settings(dtype=place.dtype), place.device) as engine:
        judged = {"logprob_threshold": 0.0, "no_speech_threshold": 1.0}
        ask(engine, AudioFeatures(features), **options, **judged)[0].finish()
        assert len(heard) >= 7
        texts = set()
        for quantile in (0.0, 0.3, 0.6, 0.9):
            threshold = float(np.quantile(heard[:7], quantile)) * (1 + 1e-5)
            judged = {"logprob_threshold": 0.0, "no_speech_threshold": threshold}
            answer = ask(engine, AudioFeatures(features), **options, **judged)[0].finish()
            assert tokens_of(answer) == written_by(reference, features, **options, **judged)
            texts.add(answer.text())
        assert len(texts) > 2
        judged = {"logprob_threshold": -1000.0, "no_speech_threshold": 0.0}
        answer = ask(engine, AudioFeatures(features), **options, **judged)[0].finish()
        assert tokens_of(answer) == written_by(reference, features, **options)
        assert between_steps(engine, lambda: engine.cache.used) == 0
        assert engine._hearing._held.seconds == pytest.approx(0)


def test_texts_are_judged_by_the_numbers_of_transformers(folder, engine, monkeypatch):
    """Mean log-probabilities of the tokens that may come, and ratios, of each window."""
    theirs: dict[str, list[float]] = {"logprob": [], "ratio": []}
    ours: dict[str, list[float]] = {"logprob": [], "ratio": []}
    for name, kept in (("avg_logprobs", "logprob"), ("compression_ratio", "ratio")):
        computed = getattr(WhisperGenerationMixin, f"_retrieve_{name}")

        def noted(*given, computed=computed, kept=kept):
            theirs[kept].append(float(computed(*given)))
            return computed(*given)

        monkeypatch.setattr(WhisperGenerationMixin, f"_retrieve_{name}", staticmethod(noted))
    monkeypatch.setattr(
        Fallback, "is_unlikely", lambda self, mean: ours["logprob"].append(mean) or False
    )
    monkeypatch.setattr(
        Fallback,
        "is_repetitive",
        lambda self, *given: ours["ratio"].append(compression_ratio(*given)) or False,
    )
    reference = tiny_whisper_folder(folder, seed=SEED)
    judged = {"logprob_threshold": -1000.0, "compression_ratio_threshold": 1000.0}
    for features in clips([450, 730], seed=5):
        tokens = written_by(reference, features, **ASKED, **LIVELY, **judged)
        found = {**judged, "fallback_temperatures": [0.5]}
        answer = ask(engine, AudioFeatures(features), **ASKED, **LIVELY, **found)[0].finish()
        assert tokens_of(answer) == tokens
    assert len(ours["logprob"]) > 10
    np.testing.assert_allclose(ours["logprob"], theirs["logprob"], 0, PIPELINE_SCORE)
    assert ours["ratio"] == theirs["ratio"]


@pytest.mark.parametrize("frames", [WINDOW, 730])
def test_segments_say_what_transformers_finds_of_their_window(folder, engine, monkeypatch, frames):
    """Where each window is to say how probable silence is; else only where that counts."""
    [features] = clips([frames], seed=3)
    silences: list[float] = []  # the last one found
    theirs: list[tuple[float, float]] = []
    find_logprob = WhisperGenerationMixin._retrieve_avg_logprobs
    find_silence = WhisperNoSpeechDetection.__call__

    def noted_silence(self, *given):
        scores = find_silence(self, *given)
        silences[:] = self.no_speech_prob.tolist()
        return scores

    def noted_logprob(*given):
        theirs.append((float(find_logprob(*given)), *silences))
        return find_logprob(*given)

    monkeypatch.setattr(WhisperNoSpeechDetection, "__call__", noted_silence)
    monkeypatch.setattr(
        WhisperGenerationMixin, "_retrieve_avg_logprobs", staticmethod(noted_logprob)
    )
    judged = {"logprob_threshold": -1000.0, "no_speech_threshold": 0.6}
    reference = tiny_whisper_folder(folder, seed=SEED)
    written_by(reference, features, **ASKED, **LIVELY, **judged)

    asked = engine.parameters(return_timestamps=True, **ASKED, **LIVELY, **judged)

    def windows(*, rates_silence: bool) -> list[DecodedWindow]:
        answer = Answer(asked)
        request = GenerationRequest(AudioFeatures(features), asked, rates_silence=rates_silence)
        engine.submit(request, None, answer.events.put)
        segments = [each for delta in answer.finish().deltas for each in delta.segments or ()]
        return [window for window, _ in groupby(each.window for each in segments)]

    found = windows(rates_silence=True)
    if frames == WINDOW:
        del theirs[1:]  # of short audio transformers hears the end once more
    logprobs, silence = zip(*theirs, strict=True)
    np.testing.assert_allclose([each.avg_logprob for each in found], logprobs, 0, PIPELINE_SCORE)
    np.testing.assert_allclose([each.no_speech_prob for each in found], silence, PIPELINE_SCORE)
    seeks = [each.seek for each in found]
    assert seeks[0] == 0
    assert seeks == sorted({*seeks})
    assert windows(rates_silence=False) == [replace(each, no_speech_prob=None) for each in found]


def test_the_first_attempt_that_is_good_is_taken(engine):
    """At each temperature the text is what a request for that alone gets."""
    temperatures = [0.0, 0.3, 0.8, 1.5, 4.0]
    taken = set()
    for seed, features in enumerate(random_features(6, seed=8)):
        options = {**ASKED, "return_timestamps": True, "seed": seed}
        texts = [
            ask(engine, AudioFeatures(features), temperature=each, **options)[0].finish().tokens()
            for each in temperatures
        ]
        ratios = [compression_ratio(each, VOCABULARY) for each in texts]
        for threshold in (*ratios, 0.1):
            wanted = next(
                (at for at, ratio in enumerate(ratios) if ratio <= threshold), len(ratios) - 1
            )
            answer = ask(
                engine,
                AudioFeatures(features),
                temperature=temperatures,
                compression_ratio_threshold=threshold,
                **options,
            )[0].finish()
            assert answer.tokens() == texts[wanted]
            assert {delta.temperature for delta in answer.deltas} == {temperatures[wanted]}
            taken.add(wanted)
    assert taken == {*range(len(temperatures))}


def test_beams_search_the_first_attempt_alone(engine):
    [features] = random_features(1)
    options = {**ASKED, "seed": 5, "num_beams": 3}
    asked = {"temperature": [0.0, 0.7], **options}
    good = ask(engine, AudioFeatures(features), logprob_threshold=-100.0, **asked)[0].finish()
    assert good.tokens() == ask(engine, AudioFeatures(features), **options)[0].finish().tokens()
    assert good.deltas[-1].score is not None
    sampled = ask(engine, AudioFeatures(features), **asked, **NEVER_GOOD)[0].finish()
    options = {**ASKED, "seed": 5, "temperature": 0.7}
    assert sampled.tokens() == ask(engine, AudioFeatures(features), **options)[0].finish().tokens()


def test_nothing_goes_on_from_what_was_drawn_wildly(engine, monkeypatch):
    """Of the windows before."""
    stood: list[list[int]] = []
    prompts = engine._hearing._prompts
    previous = prompts._previous

    def noted(parameters, written):
        stood.append([*written])
        return previous(parameters, written)

    monkeypatch.setattr(prompts, "_previous", noted)
    [features] = clips([330])
    for last, goes_on in ((0.4, True), (0.6, False)):
        stood.clear()
        options = {**ASKED, "temperature": [0.0, last], "condition_on_prev_tokens": True}
        ask(engine, AudioFeatures(features), seed=1, **options, **NEVER_GOOD)[0].finish()
        assert any(stood) == goes_on


def test_the_encoder_hears_a_window_once(engine, monkeypatch):
    encoded, encode = [], engine.model.encode
    monkeypatch.setattr(
        engine.model, "encode", lambda batch, cache: encoded.append(batch) or encode(batch, cache)
    )
    [features] = random_features(1, seed=91)
    asked = {"temperature": [0.0, 0.2, 0.4], "no_speech_threshold": 1.0, **NEVER_GOOD}
    answer = ask(engine, AudioFeatures(features), **ASKED, **asked)[0].finish()
    assert answer.deltas[-1].temperature == 0.4
    assert len(encoded) == 1


def test_silence_of_one_window_is_an_empty_text(engine):
    asked = {"no_speech_threshold": 0.0, "return_timestamps": True, **NEVER_GOOD}
    answer: Answer = ask(engine, AudioFeatures(random_features(1)[0]), **ASKED, **asked)[0].finish()
    [delta] = answer.deltas
    assert (delta.text, delta.token_ids, delta.segments) == ("", [], [])
    assert (delta.finish_reason, delta.num_output_tokens, delta.language) == ("stop", 0, "de")


def test_words_are_timed_in_the_attempt_that_is_taken(engine):
    asked = {"temperature": [0.0, 0.7], "seed": 3, "return_timestamps": "word", **NEVER_GOOD}
    [features] = clips([230])
    answer = ask(engine, AudioFeatures(features), **ASKED, **asked)[0].finish()
    times = [time for delta in answer.deltas for each in delta.segments for time in each.times]
    assert len(times) == len([token for token in tokens_of(answer) if token < EOS])
    assert times[-1][1] > 1.5


def test_cancelling_ends_all_attempts(engine):
    asked = {"temperature": [0.0, *[0.1] * 12], **ASKED, **NEVER_GOOD}
    for frames in (WINDOW, 500):
        with held(engine):
            answer, ticket = ask(engine, AudioFeatures(clips([frames], seed=frames)[0]), **asked)
        between_steps(engine, lambda: None)
        ticket.cancel()
        assert answer.finish().cancelled
        assert between_steps(engine, lambda: engine.cache.used) == 0
        assert engine._hearing._held.seconds == 0


def test_an_attempt_that_fails_ends_its_request(engine, monkeypatch):
    attempts = []

    def fail(mean: float) -> bool:
        attempts.append(mean)
        raise ZeroDivisionError

    monkeypatch.setattr(Fallback, "is_unlikely", lambda self, mean: fail(mean))
    with pytest.raises(ComputeFailed):
        ask(engine, AudioFeatures(random_features(1)[0]), **ASKED, **NEVER_GOOD)[0].finish()
    assert len(attempts) == 1
    monkeypatch.undo()
    assert ask(engine, AudioFeatures(random_features(1)[0]), **ASKED)[0].finish().tokens()


def test_the_folder_names_thresholds(tmp_path):
    tiny_whisper_folder(tmp_path)
    thresholds = {"logprob_threshold": -1.0, "no_speech_threshold": 0.6}
    edit_generation(tmp_path, compression_ratio_threshold=1.35, **thresholds)
    with GenerationEngine(tmp_path, settings()) as engine:
        asked = engine.parameters(temperature=[0, 0.5])
        assert (asked.temperature, asked.fallback_temperatures) == (0, (0.5,))
        assert asked.compression_ratio_threshold == 1.35
        assert (asked.logprob_threshold, asked.no_speech_threshold) == (-1.0, 0.6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"no_speech_threshold": 0.6}, "no_speech_threshold: got 0.6, wanted null without logprob"),
        (
            {"n": 2, "temperature": [1.0, 1.2], **NEVER_GOOD},
            "n: got 2, wanted 1 where a window may be",
        ),
        ({"best_of": 2, "temperature": 1.0, **NEVER_GOOD}, "best_of: got 2, wanted none where"),
        ({"temperature": [0.0, 1e-4]}, "temperature: got 0.0001, wanted 0 .greedy. or at least"),
        ({"temperature": []}, r"temperature: got \[\], wanted a number"),
        ({"temperature": [0.5]}, r"temperature: got \[0.5\], wanted a number"),
        ({"temperature": [0.0] * 18}, "temperature: got 17 entries, wanted at most 16"),
        ({"temperature": [0.0, 101.0]}, "temperature: got 101.0, wanted at most 100"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(engine, parameters, message):
    with pytest.raises(InvalidInput, match=message):
        ask(engine, AudioFeatures(random_features(1)[0]), **ASKED, **parameters)
