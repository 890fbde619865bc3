"""Audio of many windows is written down as transformers' sequential decoding has it, whatever runs
beside it."""

from __future__ import annotations

import queue
import random
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine import generation_thread
from fusewire.engine.branches import Event
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine
from fusewire.errors import ComputeFailed, DeadlineExceeded, InvalidInput, QueueFull, Unavailable
from fusewire.generation.prompt import AudioFeatures
from fusewire.generation.request import GenerationRequest
from numpy.typing import NDArray

from tests.engine.generating import (
    ANSWER_TIMEOUT_S,
    Answer,
    Cancelling,
    ask,
    between_steps,
    held,
    pass_steps,
)
from tests.engine.speech.hearing import LIVELY, SEED, WINDOW, clips, settings, tokens_of
from tests.models.tiny_whisper import (
    EOS,
    NO_TIMESTAMPS,
    PREVIOUS,
    as_transformers,
    tiny_whisper_folder,
)
from tests.places import CPU, GPU_FP32

ASKED: dict[str, Any] = {"language": "de", "task": "transcribe", "max_new_tokens": 24, **LIVELY}


def written_by(model: Any, features: NDArray[np.float32], **options: Any) -> tuple[Any, list[int]]:
    """Segments and tokens of transformers."""
    device = next(model.parameters()).device
    with torch.no_grad():
        out = model.generate(
            as_transformers(features, device),
            return_timestamps=True,
            return_segments=True,
            do_sample=False,
            **{"num_beams": 1, **options},
        )
    return out["segments"][0], out["sequences"][0].tolist()


def times_of(answer: Answer) -> list[tuple[float | None, float | None]]:
    return [(each.start, each.end) for delta in answer.deltas for each in delta.segments or ()]


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_texts_are_those_of_transformers(tmp_path, num_beams, place):
    """Of many windows, arriving at any time, in languages that are named and heard, some of them
    cancelled in one of their windows."""
    reference = tiny_whisper_folder(tmp_path, seed=SEED).to(place.device)
    chosen = random.Random(num_beams)
    lengths = [chosen.randint(WINDOW + 1, 7 * WINDOW) for _ in range(6)]
    with GenerationEngine(tmp_path, settings(dtype=place.dtype), place.device) as engine:
        cancelling = Cancelling(engine)
        asked = []
        for features in clips(lengths):
            options = {
                **ASKED,
                "language": chosen.choice([None, "de", "fr"]),
                "task": chosen.choice(["transcribe", "translate"]),
                "num_beams": num_beams,
            }
            asked.append((features, options, ask(engine, AudioFeatures(features), **options)[0]))
            cancelling.ask(chosen.randint(1, 60), AudioFeatures(clips([500], 9)[0]), **options)
            pass_steps(engine, chosen.randint(1, 4))
        for features, options, answer in asked:
            answer.finish()
            segments, tokens = written_by(reference, features, **options)
            assert tokens_of(answer) == tokens
            assert len(answer.deltas) >= 2
            assert answer.text() == engine.tokenizer.decode([t for t in tokens if t < EOS])
            theirs = [(float(each["start"]), float(each["end"])) for each in segments]
            ours = times_of(answer)
            assert len(ours) == len([each for each in segments if (each["tokens"] < EOS).any()])
            # Of a window without a pair of timestamps they begin where it begins.
            assert {*np.round(theirs, 6)[:, 1]} >= {end for _, end in ours}
        assert between_steps(engine, lambda: engine.cache.used) == 0
        assert engine._hearing._held.seconds == pytest.approx(0)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("prompt_ids", [(), (PREVIOUS, 11, 23, 42)])
def test_text_before_a_window_stands_before_it(folder, engine, num_beams, conditioned, prompt_ids):
    """The request's, and that of the windows before."""
    reference = tiny_whisper_folder(folder, seed=SEED)
    options = {**ASKED, "num_beams": num_beams, "condition_on_prev_tokens": conditioned}
    plain = {**ASKED, "num_beams": num_beams}
    for features in clips([350, 620], seed=4):
        answer = ask(engine, AudioFeatures(features), prompt_ids=prompt_ids, **options)[0].finish()
        theirs = {"prompt_ids": torch.tensor(prompt_ids)} if prompt_ids else {}
        _, tokens = written_by(reference, features, **options, **theirs)
        assert tokens_of(answer) == tokens
        assert answer.text() == engine.tokenizer.decode([t for t in tokens if t < EOS])
        without = ask(engine, AudioFeatures(features), **plain)[0].finish()
        assert (tokens_of(without) == tokens) == (not conditioned and not prompt_ids)


def test_a_prompt_stands_before_one_window_too(folder, engine):
    reference = tiny_whisper_folder(folder, seed=SEED)
    [features] = clips([WINDOW], seed=5)
    options = {**ASKED, "return_timestamps": False}
    answer = ask(engine, AudioFeatures(features), prompt_ids=[11, 23, 42], **options)[0].finish()
    with torch.no_grad():
        out = reference.generate(
            as_transformers(features),
            prompt_ids=torch.tensor([PREVIOUS, 11, 23, 42]),
            force_unique_generate_call=True,
            **options,
        )[0].tolist()
    written = out[out.index(NO_TIMESTAMPS) + 1 :]
    assert answer.tokens() == written
    assert answer.text() == engine.tokenizer.decode([t for t in written if t < EOS])


def test_thirty_seconds_are_heard_at_once(tmp_path):
    """As of the published models."""
    reference = tiny_whisper_folder(tmp_path, seed=4, seconds=30, max_target_positions=96)
    with GenerationEngine(tmp_path, settings(kv_cache_mib=8)) as engine:
        options = {**ASKED, "max_new_tokens": 60}
        for features in clips([3500, 9000]):
            answer = ask(engine, AudioFeatures(features), **options)[0].finish()
            _, tokens = written_by(reference, features, **options)
            assert tokens_of(answer) == tokens
            assert len(answer.deltas) > 1


def test_a_text_comes_window_by_window(engine):
    [features] = clips([450])
    answer, ticket = ask(engine, AudioFeatures(features), **ASKED)
    answer.finish()
    assert len(answer.deltas) >= 5
    assert [delta.finish_reason for delta in answer.deltas[:-1]] == [None] * (
        len(answer.deltas) - 1
    )
    assert ticket.num_input_tokens == 225
    assert answer.deltas[-1].num_output_tokens == len(tokens_of(answer))
    starts = [start for start, _ in times_of(answer)]
    assert starts == sorted(starts)
    assert starts[-1] > 3
    assert {delta.language for delta in answer.deltas} == {"de"}


def test_an_audio_input_keeps_its_turn_until_it_ends(folder):
    """Its windows go before requests that came later; it is refused at once or not at all."""
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    def submit(engine: GenerationEngine, name: str, frames: int) -> None:
        def note(event: Event) -> None:
            assert isinstance(event, Delta)
            if event.finish_reason is not None:
                ended.put(name)

        request = GenerationRequest(AudioFeatures(clips([frames])[0]), engine.parameters(**ASKED))
        engine.submit(request, None, note)

    with GenerationEngine(folder, settings(max_sequences=1, max_waiting=2)) as engine:
        with held(engine):
            submit(engine, "long", 450)
            submit(engine, "short", WINDOW)
            submit(engine, "longer", 700)
            with pytest.raises(QueueFull):
                submit(engine, "another", 450)
        names = [ended.get(timeout=ANSWER_TIMEOUT_S) for _ in range(3)]
        assert names == ["long", "short", "longer"]
        assert between_steps(engine, lambda: engine._admission._taken) == 0


def test_cancelling_ends_the_window_that_is_heard_and_what_follows(engine):
    with held(engine):
        answer, ticket = ask(engine, AudioFeatures(clips([700])[0]), **ASKED)
    answer.next()
    ticket.cancel()
    assert answer.finish().cancelled
    assert len(answer.deltas) < 7
    assert between_steps(engine, lambda: engine.cache.used) == 0
    assert engine._hearing._held.seconds == 0


def test_what_fails_between_windows_ends_the_request(engine, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("fusewire.engine.long_transcription.segments_at", lambda *_: 1 / 0)
        with pytest.raises(ComputeFailed):
            ask(engine, AudioFeatures(clips([450])[0]), **ASKED)[0].finish()
    assert between_steps(engine, lambda: engine.cache.used) == 0
    assert engine._hearing._held.seconds == 0


def test_the_deadline_is_that_of_all_windows(engine, monkeypatch):
    asked = engine.parameters(**{**ASKED, "timeout_seconds": 1e-9})
    answer = Answer(asked)
    request = GenerationRequest(AudioFeatures(clips([700])[0]), asked)
    engine.submit(request, None, answer.events.put)
    with pytest.raises(DeadlineExceeded):
        answer.finish()
    steps = 0
    late_from = 1 << 30  # the step before which an hour passes

    def monotonic() -> float:
        nonlocal steps
        steps += 1
        return time.monotonic() + (3600 if steps > late_from else 0)

    def asked_for(audio: AudioFeatures) -> Answer:
        asked = engine.parameters(**ASKED)
        answer = Answer(asked)
        deadline = time.monotonic() + 1800
        engine.submit(GenerationRequest(audio, asked), deadline, answer.events.put)
        return answer

    between_steps(engine, lambda: None)
    monkeypatch.setattr(generation_thread, "time", SimpleNamespace(monotonic=monotonic))
    audio = AudioFeatures(clips([3000])[0])
    windows = len(times_of(asked_for(audio).finish()))
    assert windows > 1
    steps, late_from = 0, steps // 2
    late = asked_for(audio)
    with pytest.raises(DeadlineExceeded):
        late.finish()
    assert 0 < len(times_of(late)) < windows


def test_an_audio_input_is_written_down_to_its_end_while_the_engine_closes(folder):
    engine = GenerationEngine(folder, settings())
    answer = ask(engine, AudioFeatures(clips([450])[0]), **ASKED)[0]
    engine.close(drain_seconds=30)
    assert answer.finish().finish_reason() is not None
    with pytest.raises(Unavailable):
        ask(engine, AudioFeatures(clips([450])[0]), **ASKED)


def test_closing_without_a_drain_ends_it(folder):
    engine = GenerationEngine(folder, settings())
    with held(engine):
        answer = ask(engine, AudioFeatures(clips([3000])[0]), **ASKED)[0]
    answer.next()
    engine.close()
    assert answer.finish().cancelled


NOTHING = clips([250])[0]
NAN_AT_LAST = NOTHING.copy()
NAN_AT_LAST[-1, -1] = np.nan


@pytest.mark.parametrize(
    ("features", "parameters", "message"),
    [
        (NOTHING, {"return_timestamps": False}, "return_timestamps: got false, wanted true for"),
        (NOTHING, {"n": 2, "temperature": 1}, "n: got 2, wanted 1 for audio of more than 1 s"),
        (NOTHING, {"best_of": 2, "temperature": 1}, "best_of: got 2, wanted none for audio"),
        (NOTHING, {"stop": "a"}, "stop: got .*wanted none for audio of more than 1 s"),
        (NOTHING, {"stop_token_ids": [5]}, "stop_token_ids: got"),
        (NOTHING, {"logprobs": 1}, "logprobs: got 1, wanted none"),
        (NOTHING, {"max_new_tokens": 62}, "max_new_tokens: got 62, wanted at most 61"),
        (
            NOTHING,
            {"condition_on_prev_tokens": True, "max_new_tokens": 40},
            "max_new_tokens: got 40, wanted at most 29",
        ),
        (NOTHING, {"prompt_ids": [EOS]}, f"prompt_ids: got id {EOS}, wanted ids of text tokens"),
        (NOTHING[:, 1:], {}, r"features: got float32 of shape \[1, 100, 19\]"),
        (NAN_AT_LAST, {}, "features: got a number that is not finite"),
        (clips([401])[0], {}, r"audio: got 4\.0 s of audio, wanted at most 4 s \(max_audio_sec"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, (dict, str)) else "",
)
def test_what_has_no_windows_is_refused_by_name(folder, features, parameters, message):
    with GenerationEngine(folder, settings(max_audio_seconds=4)) as engine:
        with pytest.raises(InvalidInput, match=message):
            ask(engine, AudioFeatures(features), **{**ASKED, **parameters})
        assert engine._admission._taken == 0
        assert engine._hearing._held.seconds == 0


def test_audio_inputs_are_refused_that_would_take_too_much_memory_together(folder):
    with GenerationEngine(folder, settings(max_audio_seconds=4)) as engine:
        with held(engine):
            asked = [ask(engine, AudioFeatures(clips([400])[0]), **ASKED)[0] for _ in range(8)]
            with pytest.raises(QueueFull, match=r"queue: got 36 s of audio .* at most 32 s"):
                ask(engine, AudioFeatures(clips([400])[0]), **ASKED)
        assert len({tuple(tokens_of(each.finish())) for each in asked}) == 1
        assert ask(engine, AudioFeatures(clips([400])[0]), **ASKED)[0].finish().text()
