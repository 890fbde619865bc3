"""Searches that are preempted and come back find what they find undisturbed, and streams of theirs
say nothing twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from tests.engine.generating import Answer, Cancelling, allocated_bytes, ask, pass_steps
from tests.engine.test_beam_search import drawn, engine_of, loaded, random_prompt
from tests.engine.test_seq2seq_generation import ENDS, LONGEST
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE


class Few(GenerationEngine):
    """Pages for the largest search of these tests, alone."""

    def _pages(self) -> int:
        return 3 + 8 * 4


def few_pages(folder, *, prefix_caching: bool = True, **place: str) -> Few:
    settings = GenerationSettings(
        max_length=LONGEST,
        max_batch_tokens=LONGEST,
        max_sequences=40,
        prefix_caching=prefix_caching,
        dtype=place.get("dtype", "float32"),
    )
    return Few(folder, settings, place.get("device", "cpu"))


def preempting(engine: GenerationEngine, seed: int) -> None:
    """Before it plans a step, now and then one that runs gives way, whether there are pages or
    not. Nobody does for a step that is begun already."""
    chosen, step, scheduler = random.Random(seed), engine._loop.step, engine._loop.scheduler

    def disturbed(now: float) -> None:
        running = [*scheduler._running]
        ahead = engine._loop._look_ahead
        begun = ahead is not None and ahead._ahead is not None
        if running and not begun and chosen.random() < 0.3:
            scheduler._preempt(chosen.choice(running))
        step(now)

    engine._loop.step = disturbed  # type: ignore[method-assign]


def expect_equal(answer: Answer, alone: Answer, n: int) -> None:
    for index in range(n):
        assert answer.tokens(index) == alone.tokens(index)
        assert answer.text(index) == alone.text(index)
        of_answer, of_alone = (
            [delta for delta in each.deltas if delta.index == index] for each in (answer, alone)
        )
        for one, other in zip(of_answer, of_alone, strict=True):
            assert one.logprob == pytest.approx(other.logprob, PIPELINE_SCORE, PIPELINE_SCORE)
        score = of_alone[-1].score
        assert of_answer[-1].score == pytest.approx(score, PIPELINE_SCORE, PIPELINE_SCORE)
        assert of_answer[-1].finish_reason == of_alone[-1].finish_reason


def options_of(chosen: random.Random) -> dict[str, Any]:
    """A search and what depends on what its beams have written."""
    options = {**drawn(chosen), "max_new_tokens": chosen.randint(3, 60)}
    options |= chosen.choice(
        [
            {},
            {"repetition_penalty": 1.3},
            {"no_repeat_ngram_size": 2},
            {"min_new_tokens": options["max_new_tokens"]},
            {"num_beams": 6, "n": 2, "num_beam_groups": 3, "diversity_penalty": 0.7},
        ]
    )
    return options


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", ["bart", "t5", "gpt2"])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preempted_searches_find_what_they_find_undisturbed(
    tmp_path, model_type, prefix_caching, place
):
    """At random arrivals and cancels, with pages for one of them at its longest, and preempted for
    no reason at all."""
    loaded(tmp_path, model_type)
    chosen = random.Random(model_type)
    ends = {"stop_token_ids": ENDS} if model_type == "gpt2" else {}
    asked = []
    for _ in range(24):
        options = options_of(chosen)
        longest = 3 if model_type == "gpt2" else 40
        asked.append((random_prompt(chosen, longest), {**options, **ends}))
    with engine_of(tmp_path, place.device, place.dtype) as roomy:
        alone = [ask(roomy, prompt, **options)[0].finish(options["n"]) for prompt, options in asked]
    engine = few_pages(
        tmp_path, prefix_caching=prefix_caching, device=place.device, dtype=place.dtype
    )
    preempting(engine, 1)
    cancelling = Cancelling(engine)
    answers = []
    for prompt, options in asked:
        answers.append(ask(engine, prompt, **options)[0])
        if chosen.random() < 0.3:
            cancelling.ask(chosen.randrange(20), prompt, **options)
        if chosen.random() < 0.3:
            ask(engine, prompt, max_new_tokens=30, temperature=1.0, n=2, **ends)
        pass_steps(engine, chosen.randrange(3))
    for (_, options), answer, undisturbed in zip(asked, answers, alone, strict=True):
        expect_equal(answer.finish(options["n"]), undisturbed, options["n"])
    assert engine.counts().preemptions > 30
    engine.close()
    assert engine.cache.used == engine.cache.live_tokens == engine.cache.reserved == 0


def test_searches_share_what_pages_there_are(tmp_path):
    """Of 35 pages four searches of 8 beams may need 35 each, and have run together."""
    loaded(tmp_path, "bart")
    engine = few_pages(tmp_path)
    together, step = [], engine._loop.step
    engine._loop.step = lambda now: (step(now), together.append(engine._loop.scheduler.running))
    options = {"num_beams": 8, "max_new_tokens": 60, "min_new_tokens": 20}
    asked = [ask(engine, [20 + turn] * 9, **options)[0] for turn in range(4)]
    for answer in asked:
        answer.finish()
    engine.close()
    assert max(together) >= 2


def test_cancelled_and_preempted_searches_leave_nothing_behind(tmp_path):
    """A thousand of them."""
    loaded(tmp_path, "bart")
    chosen = random.Random(4)
    with few_pages(tmp_path) as engine:
        preempting(engine, 2)
        cancelling = Cancelling(engine)
        before = 0
        for turn in range(250):
            asked = []
            for _ in range(4):
                options = {**drawn(chosen), "max_new_tokens": 40, "min_new_tokens": 40}
                prompt = random_prompt(chosen, 40)
                asked.append(cancelling.ask(chosen.randrange(20), prompt, **options)[0])
            for answer in asked:
                assert answer.finish().cancelled
            if turn == 50:  # what grows with the largest step has grown
                before = allocated_bytes(engine)
        cache = engine.cache
        assert cache.used == cache.reserved == cache.live_tokens == 0
        assert allocated_bytes(engine) == before
        assert engine.counts().running == engine.counts().waiting == 0
        assert engine.counts().preemptions > 100
        assert engine._admission._taken == 0
