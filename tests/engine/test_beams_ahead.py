"""A step of beams that is begun before the candidates of the one before it are read changes no
answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import ComputeFailed

from tests.engine.generating import (
    LONGEST,
    Cancelling,
    ask,
    between_steps,
    first_row_nan,
    held,
    pass_steps,
    spoiled,
    tiny_folder,
)
from tests.engine.test_look_ahead import told
from tests.engine.test_seq2seq_generation import WORDS, random_sources, seq2seq_folder
from tests.places import CPU, GPU_FP32

BEAMS = (
    {"num_beams": 2},
    {"num_beams": 4, "n": 3},
    {"num_beams": 3, "ignore_eos": True},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 0.3},
    {"num_beams": 5, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 2, "stop_token_ids": list(range(0, WORDS, 3))},
    {"num_beams": 4, "patience": 2.0, "max_new_tokens": 40},
)
# Changes that are the same in every step: of all, they keep none from being begun ahead.
FIXED = (
    {"num_beams": 3, "bad_words_ids": [[5], [6]]},
    {"num_beams": 4, "logit_bias": {7: 2.5, 8: -1.0}, "n": 2},
    {"num_beams": 2, "suppress_tokens": list(range(1, WORDS, 3)), "ignore_eos": True},
)
OTHERS = (
    {},
    {"temperature": 1.2, "seed": 3},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"num_beams": 3, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "repetition_penalty": 1.3},
    {"num_beams": 3, "bad_words_ids": [[5], [6]], "renormalize_logits": True},
    {"num_beams": 2, "min_new_tokens": 3, "max_new_tokens": 30},
)


class Ahead(GenerationEngine):
    """An engine with few pages that says how many of its steps of beams were begun ahead, and
    dropped."""

    def _pages(self) -> int:
        return 24

    def __init__(self, *arguments: object, **given: object) -> None:
        super().__init__(*arguments, **given)  # type: ignore[arg-type]
        self.begun = self.dropped = 0
        if (look_ahead := self._loop._look_ahead) is None:
            return
        begin, drop = look_ahead.begin_beams, look_ahead.drop

        def begun(*of_step: object) -> object:
            step = begin(*of_step)  # type: ignore[arg-type]
            self.begun += look_ahead._ahead is not None
            return step

        def dropped() -> None:
            self.dropped += 1
            drop()

        look_ahead.begin_beams = begun  # type: ignore[method-assign, assignment]
        look_ahead.drop = dropped  # type: ignore[method-assign]


def pair(folder, place=None) -> list[Ahead]:
    device = "cpu" if place is None else place.device
    settings = GenerationSettings(max_batch_tokens=64, max_sequences=16, dtype="float32")
    return [Ahead(folder, settings, device, look_ahead=ahead) for ahead in (False, True)]


@pytest.fixture(scope="module", params=["gpt2", "bart", "t5", "marian"])
def folder(request, tmp_path_factory):
    """Marian bans the padding, as its folders do."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gpt2":
        return tiny_folder(folder)
    bans = {"bad_words_ids": [[1]]} if request.param == "marian" else {}
    seq2seq_folder(folder, request.param, **bans)
    return folder


@pytest.fixture
def engines(folder, request) -> Iterator[list[Ahead]]:
    """One that reads the candidates of every step before the next, and one that looks ahead."""
    both = pair(folder, getattr(request, "param", None))
    yield both
    for engine in both:
        engine.close()


def answered(engine: GenerationEngine, seed: int, kinds) -> list[list[object]]:
    """What 40 requests of these kinds are told: 12 come at once, for which there are too few pages,
    the others at any time."""
    chosen, asked = random.Random(seed), []

    def submit(prompt: list[int]) -> None:
        parameters = {"max_new_tokens": chosen.randint(1, 40), **chosen.choice(kinds)}
        asked.append((parameters.get("n", 1), ask(engine, prompt, **parameters)[0]))

    prompts = random_sources(40, seed, longest=LONGEST - 70)
    with held(engine):
        for prompt in prompts[:12]:
            submit(prompt)
    for prompt in prompts[12:]:
        submit(prompt)
        pass_steps(engine, chosen.choice((0, 0, 8, 24)))
    return [told(answer.finish(count)) for count, answer in asked]


@pytest.mark.parametrize(
    ("kinds", "begun"),
    [(BEAMS, 100), (FIXED, 100), ((*BEAMS, *FIXED, *OTHERS), 10)],
    ids=["beams", "fixed", "any"],
)
def test_answers_are_those_of_an_engine_that_reads_every_step_first(engines, kinds, begun):
    first, ahead = engines
    for seed in range(2):
        assert answered(ahead, seed, kinds) == answered(first, seed, kinds)
    assert (first.begun, first.dropped) == (0, 0)
    assert ahead.begun >= begun
    assert ahead.counts().preemptions > 0
    for look in (lambda of: of.cache.used, lambda of: of.counts().live_tokens):
        assert between_steps(ahead, lambda look=look: look(ahead)) == between_steps(
            first, lambda look=look: look(first)
        )


@pytest.mark.parametrize("engines", [CPU, GPU_FP32], indirect=True)
def test_most_steps_of_searches_that_go_on_together_are_begun_ahead(engines):
    found = []
    for engine in engines:
        with held(engine):
            asked = [
                ask(engine, [i + 5], num_beams=4, max_new_tokens=40, ignore_eos=True)[0]
                for i in range(3)
            ]
        found.append([told(answer.finish()) for answer in asked])
    assert found[0] == found[1]
    # All but the prompts' step, the first one of beams, and the last, which ends them.
    assert engines[1].begun >= 36


def test_a_search_that_is_done_leaves_the_others_ahead(engines):
    """It has rows in a step that is under way, and none in the next one."""
    found = []
    for engine in engines:
        most = [token for token in range(engine.model.vocab_size) if token % 5][:128]
        soon = {"stop_token_ids": most, "early_stopping": True}
        with held(engine):
            asked = [
                ask(engine, [i + 5], num_beams=4, max_new_tokens=40, **kind)[0]
                for i, kind in enumerate([{"ignore_eos": True}, soon])
            ]
        found.append([told(answer.finish()) for answer in asked])
    assert found[0] == found[1]
    assert len(found[1][1]) < 30
    assert engines[1].begun >= 36


def test_searches_that_end_by_their_lengths_leave_the_others_ahead(engines):
    """But where a page begins for one that ends, for which none is reserved."""
    found = []
    for engine in engines:
        with held(engine):
            asked = [
                ask(engine, [i + 5], num_beams=2, max_new_tokens=most, ignore_eos=True)[0]
                for i, most in enumerate((5, 16, 30))
            ]
        found.append([told(answer.finish()) for answer in asked])
    assert found[0] == found[1]
    # All that can be of 30 tokens, less the one behind the last of 16, and of a model that forces
    # last tokens the one behind that of 5.
    assert engines[1].begun == 27 - bool(getattr(engines[1].model, "forced_eos_token_id", ()))


def test_a_search_that_is_cancelled_ends_while_its_next_step_is_under_way(engines):
    for engine in engines:
        cancelling = Cancelling(engine)
        cancelled, _ = cancelling.ask(
            10, [5, 6, 7], num_beams=3, max_new_tokens=25, ignore_eos=True
        )
        other, _ = ask(engine, [8, 9], num_beams=4, max_new_tokens=25, ignore_eos=True)
        cancelled.finish()
        assert cancelled.cancelled
        assert len(other.finish().tokens()) == 25
        assert between_steps(engine, lambda engine=engine: engine.counts().live_tokens) == 0
        assert between_steps(engine, lambda engine=engine: engine.cache._pool.reserved) == 0


def test_a_step_is_computed_again_where_fewer_beams_run_on(engines):
    """As the device took as many to run on. Of a model that allows three tokens behind one beam,
    and behind the others but one that ends them, no more than three do."""
    end = 4

    def narrow(logits):
        logits[0, 3:] = -np.inf
        logits[1:, :end] = logits[1:, end + 1 :] = -np.inf

    found = []
    for engine in engines:
        with spoiled(engine, narrow, at=6):
            asked = {"max_new_tokens": 20, "ignore_eos": True, "stop_token_ids": [end]}
            answer = ask(engine, [5], num_beams=4, **asked)[0]
            found.append(told(answer.finish()))
        assert between_steps(engine, lambda engine=engine: engine.cache._pool.reserved) == 0
    assert found[0] == found[1]
    assert engines[1].dropped == 1


def test_a_search_with_nan_ends_and_no_other(engines):
    found = []
    for engine in engines:
        with spoiled(engine, first_row_nan, at=5):
            with held(engine):
                bad, other = (
                    ask(engine, [5 + i], num_beams=2, max_new_tokens=20, ignore_eos=True)[0]
                    for i in range(2)
                )
            with pytest.raises(ComputeFailed, match="NaN"):
                bad.finish()
            found.append(told(other.finish()))
    assert found[0] == found[1]


def test_a_step_that_could_not_be_begun_is_planned_behind_the_one_before(engines):
    found = []
    for engine in engines:
        step = engine.model.step

        def failing(batch, cache, step=step):
            if batch.forked is not None:
                raise RuntimeError("no room")
            return step(batch, cache)

        engine.model.step = failing
        asked = [ask(engine, [5 + i], num_beams=3, max_new_tokens=40)[0] for i in range(2)]
        found.append([told(answer.finish()) for answer in asked])
        engine.model.step = step
        assert between_steps(engine, lambda engine=engine: engine.cache._pool.reserved) == 0
    assert found[0] == found[1]
    assert engines[1].begun == 0
