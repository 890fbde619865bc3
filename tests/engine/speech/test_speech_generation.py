"""Texts of audio are those of transformers' `generate`, whatever runs beside them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import CheckpointError, ComputeFailed, ConfigurationError, InvalidInput
from fusewire.generation.prompt import AudioFeatures
from numpy.typing import NDArray

from tests.engine.generating import (
    Answer,
    Cancelling,
    ask,
    between_steps,
    held,
    pass_steps,
    tiny_engine,
)
from tests.engine.speech.hearing import LIVELY, SEED, edit_generation, settings
from tests.models.tiny_whisper import (
    BINS,
    EOS,
    GENERATION,
    POSITIONS,
    as_transformers,
    random_features,
    tiny_whisper_folder,
)
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE

DURING = {"max_new_tokens": 24, **LIVELY}


def answered_by(model: Any, features: NDArray[np.float32], **options: Any) -> tuple[Any, list[int]]:
    """What transformers generates in one pass: its outputs, and the tokens behind the beginning."""
    options.setdefault("task", "transcribe")
    options.setdefault("num_beams", 1)
    with torch.no_grad():
        out = model.generate(
            as_transformers(features, next(model.parameters()).device),
            do_sample=False,
            force_unique_generate_call=True,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    tokens = out.sequences[0].tolist()
    begun = 3 if options.get("return_timestamps") else 4
    written = tokens[begun:]
    end = written.index(EOS) + 1 if EOS in written else len(written)
    return out, written[:end]


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_texts_are_those_of_transformers(tmp_path, num_beams, place):
    """Arriving at any time, with timestamps and without, in languages that are named and heard,
    some of them cancelled."""
    reference = tiny_whisper_folder(tmp_path, seed=SEED).to(place.device)
    chosen = random.Random(num_beams)
    with GenerationEngine(tmp_path, settings(dtype=place.dtype), place.device) as engine:
        cancelling = Cancelling(engine)
        asked = []
        for features, timestamps in itertools.product(random_features(4), (False, True)):
            options = {
                "language": chosen.choice([None, "de", "french"]),
                "task": chosen.choice(["transcribe", "translate"]),
                "return_timestamps": timestamps,
                "num_beams": num_beams,
                **DURING,
            }
            asked.append((features, options, ask(engine, AudioFeatures(features), **options)[0]))
            cancelling.ask(chosen.randint(1, 5), AudioFeatures(random_features(1, 9)[0]), **options)
            pass_steps(engine, chosen.randint(1, 4))
        for features, options, answer in asked:
            answer.finish()
            out, wanted = answered_by(reference, features, **options)
            assert answer.tokens() == wanted
            if num_beams > 1:
                score = answer.deltas[-1].score
                # Theirs divides by the tokens that were generated, ours too.
                theirs = out.sequences_scores[0].item()
                assert score == pytest.approx(theirs, PIPELINE_SCORE, PIPELINE_SCORE)
        stamped = [answer for _, options, answer in asked if options["return_timestamps"]]
        assert max(len(list(segments_of(engine, each))) for each in stamped) > 1
        assert between_steps(engine, lambda: engine.cache.used) == 0


def segments_of(engine: GenerationEngine, answer: Answer) -> Iterator[Any]:
    assert engine.speech is not None
    return engine.speech.segments(answer.tokens())


def test_sampled_texts_keep_to_the_rules_of_timestamps(engine):
    [features] = random_features(1)
    sampled = {"temperature": 1.5, "return_timestamps": True, "language": "en", "n": 4, "seed": 3}
    answer = ask(engine, AudioFeatures(features), max_new_tokens=40, **sampled)[0].finish(4)
    begin = engine.speech.timestamp_begin
    for index in range(4):
        stamps = [token for token in answer.tokens(index) if token >= begin]
        assert stamps == sorted(stamps)
        assert answer.tokens(index)[0] in range(begin, begin + 6)
    assert len({tuple(answer.tokens(index)) for index in range(4)}) == 4


def test_the_language_that_is_heard_is_told(folder, engine):
    reference = tiny_whisper_folder(folder, seed=SEED)
    features = random_features(6)
    answers = [ask(engine, AudioFeatures(each), **DURING)[0].finish() for each in features]
    lang_to_id = reference.generation_config.lang_to_id
    codes = {token: code.strip("<|>") for code, token in lang_to_id.items()}
    wanted = [codes[int(reference.detect_language(as_transformers(each)))] for each in features]
    assert [answer.deltas[0].language for answer in answers] == wanted
    assert len(set(wanted)) > 1
    named = ask(engine, AudioFeatures(features[0]), language=wanted[0].upper(), **DURING)[
        0
    ].finish()
    assert named.tokens() == answers[0].tokens()
    assert named.deltas[-1].language == wanted[0]


def test_equal_audio_is_encoded_once(engine, monkeypatch):
    encoded = []
    encode = engine.model.encode
    monkeypatch.setattr(
        engine.model, "encode", lambda batch, cache: encoded.append(batch) or encode(batch, cache)
    )
    [features] = random_features(1, seed=21)
    with held(engine):
        asked = [
            ask(engine, AudioFeatures(features.copy()), num_beams=n, **DURING) for n in (1, 1, 3)
        ]
    tokens = [answer.finish().tokens() for answer, _ in asked]
    assert tokens[0] == tokens[1]
    again = ask(engine, AudioFeatures(features), language="de", **DURING)[0].finish()
    assert len(encoded) == 1
    assert again.deltas[-1].num_cached_tokens == POSITIONS
    assert asked[0][1].num_input_tokens == POSITIONS


def test_timestamps_are_no_part_of_the_text(engine):
    [features] = random_features(1)
    options = {"language": "de", "return_timestamps": True, **DURING}
    plain = ask(engine, AudioFeatures(features), **options)[0].finish()
    whole = ask(engine, AudioFeatures(features), skip_special_tokens=False, **options)[0].finish()
    assert plain.tokens() == whole.tokens()
    words = [token for token in plain.tokens() if token < EOS]
    assert plain.text() == engine.tokenizer.decode(words)
    assert whole.text().startswith("<|de|><|transcribe|><|0.")


def test_a_request_that_is_cancelled_while_its_language_is_heard_ends(engine):
    [features] = random_features(1, seed=33)
    with held(engine):
        answer, ticket = ask(engine, AudioFeatures(features), **DURING)
        ticket.cancel()
    assert answer.finish().cancelled
    assert ticket.num_output_tokens() == 0
    assert between_steps(engine, lambda: engine.cache.used) == 0


def test_an_encoder_pass_that_fails_ends_its_requests_alone(engine, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    [features] = random_features(1, seed=34)
    monkeypatch.setattr(engine.model, "encode", fail)
    with pytest.raises(ComputeFailed):
        ask(engine, AudioFeatures(features))[0].finish()
    monkeypatch.undo()
    assert ask(engine, AudioFeatures(features), **DURING)[0].finish().tokens()


NOTHING = np.zeros((2 * POSITIONS, BINS), np.float32)


@pytest.mark.parametrize(
    ("prompt", "parameters", "message"),
    [
        (AudioFeatures(NOTHING[:-1]), {}, r"features: got float32 of shape \[1, 99, 20\]"),
        (AudioFeatures(NOTHING * np.nan), {}, "features: got a number that is not finite"),
        (
            AudioFeatures(NOTHING),
            {"language": "xx"},
            "language: got 'xx', wanted one of de, en, fr",
        ),
        (AudioFeatures(NOTHING), {"language": "spanish"}, "language: got 'spanish'"),
        (AudioFeatures(NOTHING), {"task": "sing"}, "task: got 'sing'"),
        (
            AudioFeatures(NOTHING),
            {"target_prefix": "a"},
            "target_prefix: got a, wanted null for a model",
        ),
        (AudioFeatures(NOTHING), {"decoder_input_ids": [5]}, "decoder_input_ids: got"),
        (AudioFeatures(NOTHING), {"alignment": True}, "alignment: got true, wanted null"),
        (
            AudioFeatures(NOTHING),
            {"max_new_tokens": 61},
            "max_new_tokens: got 61, wanted at most 60",
        ),
        (AudioFeatures(NOTHING), {"num_beams": 9}, "num_beams: got 9, wanted at most 8"),
        (
            AudioFeatures(NOTHING),
            {"stop": ["a"], "return_timestamps": True},
            r"stop: got \['a'\], wanted none with timestamps",
        ),
        ("some text", {}, "text_input: got a text, wanted audio for a speech model"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused_by_name(engine, prompt, parameters, message):
    with held(engine):
        beside = ask(engine, AudioFeatures(NOTHING), **DURING)[0]
        with pytest.raises(InvalidInput, match=message):
            ask(engine, prompt, **parameters)
    assert beside.finish().tokens()


def test_a_model_of_texts_hears_nothing(tmp_path):
    with tiny_engine(tmp_path) as engine:
        with pytest.raises(InvalidInput, match="audio: got audio, wanted a text or ids for a"):
            ask(engine, AudioFeatures(NOTHING))
        with pytest.raises(InvalidInput, match="language: got de, wanted null"):
            ask(engine, "text", language="de")


def test_a_model_of_one_language_takes_no_other(tmp_path):
    reference = tiny_whisper_folder(tmp_path)
    edit_generation(tmp_path, is_multilingual=False, lang_to_id=..., task_to_id=...)
    for key in ("lang_to_id", "task_to_id"):
        delattr(reference.generation_config, key)
    reference.generation_config.is_multilingual = False
    [features] = random_features(1)
    with GenerationEngine(tmp_path, settings()) as engine:
        answer = ask(engine, AudioFeatures(features), **DURING)[0].finish()
        _, wanted = answered_by(reference, features, task=None, **DURING)
        # Two tokens stand in front: the start, and the one for no timestamps.
        assert answer.tokens()[2:] == wanted
        assert answer.deltas[-1].language is None
        with pytest.raises(InvalidInput, match="language: got en, wanted null for a model that"):
            ask(engine, AudioFeatures(features), language="en")


def test_the_folder_says_what_a_request_does_not(tmp_path):
    tiny_whisper_folder(tmp_path)
    edit_generation(tmp_path, language="German", task="translate", return_timestamps=True)
    with GenerationEngine(tmp_path, settings()) as engine:
        asked = engine.parameters()
        assert (asked.language, asked.task) == ("de", "translate")
        assert asked.return_timestamps
        assert asked.max_new_tokens == GENERATION["max_length"]
    edit_generation(
        tmp_path, language=..., task=..., forced_decoder_ids=[[1, 84], [2, 86], [3, 90]]
    )
    with GenerationEngine(tmp_path, settings()) as engine:
        assert (engine.parameters().language, engine.parameters().task) == ("fr", "transcribe")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lang_to_id": ...}, "lang_to_id: got None, wanted an object of tokens"),
        ({"lang_to_id": {"<|en|>": 10**6}}, "lang_to_id: got 1000000, wanted a token in 0..141"),
        ({"task_to_id": {"transcribe": 86}}, "wanted tokens of transcribe and translate"),
        ({"no_timestamps_token_id": None}, "no_timestamps_token_id: got None"),
        ({"max_initial_timestamp_index": -1}, "max_initial_timestamp_index: got -1"),
        ({"language": "klingon"}, "language: got 'klingon', wanted one of de, en, fr"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_heard_is_refused(tmp_path, changes, message):
    tiny_whisper_folder(tmp_path)
    edit_generation(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=f"generation_config.json: .*{message}"):
        GenerationEngine(tmp_path, settings())


def test_other_features_than_the_models_are_refused(tmp_path):
    tiny_whisper_folder(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(path.read_text().replace('"chunk_length": 1', '"chunk_length": 2'))
    with pytest.raises(CheckpointError, match="got features of 200 frames x 20 bins, wanted 100"):
        GenerationEngine(tmp_path, settings())


def test_an_audio_input_is_encoded_in_one_step(folder):
    with pytest.raises(ConfigurationError, match="max_batch_tokens: got 49, wanted at least 50"):
        GenerationEngine(folder, settings(max_batch_tokens=49))
