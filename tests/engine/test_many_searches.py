"""Hundreds of requests of every encoder-decoder architecture, with options of chance, find what
transformers finds; and a thousand that are cancelled leave nothing behind."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire import kernels
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from tests.engine.generating import Answer, Cancelling, ask, between_steps, pass_steps
from tests.engine.test_beam_preemption import preempting
from tests.engine.test_beam_search import (
    STOPPING,
    Reference,
    engine_of,
    expect,
    random_prompt,
)
from tests.engine.test_seq2seq_generation import LONGEST, seq2seq_folder
from tests.models.tiny_seq2seq import SEQ2SEQ
from tests.places import CPU, GPU_FP32

SOURCES = 200
# Rounding to fp32 decides where candidates are as close as this.
LEAST_GAP = 1e-4
FREE = range(10, 40)  # tokens that end no text
# To M2M-100 of transformers an <pad> that it has written has no position.
NEVER = {"m2m_100": [1]}

# What changes log-probabilities: of each search a few at random.
CHANGES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
    {"encoder_repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"encoder_no_repeat_ngram_size": 2},
    {"bad_words_ids": [[token] for token in (11, 24, 30)]},
    {"bad_words_ids": [[a, b] for a in FREE for b in (17, 33)]},
    {"suppress_tokens": [*range(12, 30)]},
    {"begin_suppress_tokens": [*range(10, 20)]},
    {"forced_bos_token_id": 31},
    {"forced_eos_token_id": 9},
    {"renormalize_logits": True},
]


class Few(GenerationEngine):
    """Pages for the largest search of these tests, alone, and a little more."""

    def _pages(self) -> int:
        return 3 + 9 * 4


def few_pages(folder: Path, device: str = "cpu") -> Few:
    settings = GenerationSettings(
        max_length=LONGEST,
        max_batch_tokens=LONGEST,
        max_sequences=24,
        max_waiting=8 * SOURCES,
        dtype="float32",
    )
    return Few(folder, settings, device)


def options_of(chosen: random.Random) -> dict[str, Any]:
    beams = chosen.choice([1, 2, 2, 3, 4, 4, 5, 6, 8])
    most = chosen.randint(3, 24)
    options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": most}
    if beams > 1:
        options["n"] = chosen.randint(1, beams)
        options["length_penalty"] = chosen.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        options["early_stopping"] = chosen.choice(STOPPING)
    if chosen.random() < 0.3:
        options["min_new_tokens"] = chosen.randint(1, most - 1)
    for change in chosen.sample(CHANGES, chosen.choice([0, 0, 1, 2, 3])):
        options |= change
    return options


@contextmanager
def gaps_of_choices() -> Iterator[list[float]]:
    """The smallest difference between neighbours among the candidates of each choice that
    transformers makes meanwhile, those that were just not taken among them."""
    gaps, topk, argmax = [inf], torch.topk, torch.argmax

    def note(scores: torch.Tensor, k: int) -> None:
        most = min(k + 1, scores.shape[-1])
        sorted_scores = topk(scores.detach().double(), most, dim=-1).values
        differences = (sorted_scores[..., :-1] - sorted_scores[..., 1:]).flatten()
        gaps.append(min(differences[differences.isfinite()].tolist(), default=inf))

    def noted_topk(scores: torch.Tensor, k: int, *args: Any, **options: Any) -> Any:
        if scores.is_floating_point():
            note(scores, k)
        return topk(scores, k, *args, **options)

    def noted_argmax(scores: torch.Tensor, *args: Any, **options: Any) -> Any:
        note(scores, 1)
        return argmax(scores, *args, **options)

    torch.topk, torch.argmax = noted_topk, noted_argmax  # type: ignore[assignment]
    try:
        yield gaps
    finally:
        torch.topk, torch.argmax = topk, argmax


def found(reference: Reference, source: list[int], options: dict[str, Any]) -> tuple[Any, float]:
    """What transformers finds, and its smallest gap."""
    with gaps_of_choices() as gaps:
        wanted = reference.search(source, **options)
    return wanted, min(gaps)


def differs(answer: Answer, wanted: list[tuple[list[int], float, float]]) -> bool:
    return [answer.tokens(index) for index in range(len(wanted))] != [each[0] for each in wanted]


@pytest.mark.sweep
@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_every_answer_is_that_of_transformers(tmp_path, model_type, place):
    """In fp64: alone, and at random arrivals beside sampled and cancelled ones, in too few pages,
    preempted now and then for no reason at all."""
    model = seq2seq_folder(tmp_path, model_type).double()
    reference = Reference(model, encoder_decoder=True)
    chosen = random.Random(model_type)
    asked = [(random_prompt(chosen, 40), options_of(chosen)) for _ in range(SOURCES)]
    for _, options in asked if model_type in NEVER else ():
        options["suppress_tokens"] = [*options.get("suppress_tokens", ()), *NEVER[model_type]]
    answers: list[Answer] = []
    with few_pages(tmp_path, place.device) as engine:
        preempting(engine, 1)
        cancelling = Cancelling(engine)
        for source, options in asked:
            answers.append(ask(engine, source, **options)[0])
            if chosen.random() < 0.2:
                cancelling.ask(chosen.randrange(20), source, **options)
            if chosen.random() < 0.2:
                ask(engine, source, max_new_tokens=12, temperature=1.3, n=2)
            pass_steps(engine, chosen.randrange(4))
        for answer, (_, options) in zip(answers, asked, strict=True):
            answer.finish(options.get("n", 1))
        assert engine.counts().preemptions > 30
    assert engine.cache.used == engine.cache.live_tokens == engine.cache.reserved == 0
    with engine_of(tmp_path, place.device, place.dtype) as engine:
        alone = [
            ask(engine, source, **options)[0].finish(options.get("n", 1))
            for source, options in asked
        ]
    close = 0
    for (source, options), *both in zip(asked, answers, alone, strict=True):
        wanted, gap = found(reference, source, options)
        for answer in both:
            if gap < LEAST_GAP and differs(answer, wanted):
                close += 1
            elif options["num_beams"] == 1:
                assert answer.tokens() == wanted[0][0], options
            else:
                expect(answer, wanted)
    assert close < SOURCES / 50


def held_bytes(engine: GenerationEngine) -> dict[str, tuple[int, int]]:
    """By what holds them, between two steps; the threads' own buffers grow to the largest step."""
    stats = kernels.default_allocator(engine.model.place.device).stats
    gc.collect()  # engines of other tests
    holders: dict[str, tuple[int, int]] = between_steps(engine, stats)["holders"]
    return {tag: held for tag, held in holders.items() if tag != "thread buffer"}


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", ["bart", "t5"])
def test_a_thousand_cancels_leave_nothing_behind(tmp_path, model_type):
    seq2seq_folder(tmp_path, model_type)
    chosen = random.Random(model_type)
    with few_pages(tmp_path) as engine:
        cancelling = Cancelling(engine)
        ask(engine, [20] * 40, num_beams=8, max_new_tokens=24)[0].finish()
        before = held_bytes(engine)
        answers: list[Answer] = []
        for _ in range(1000):
            options = options_of(chosen)
            if options["num_beams"] == 1 and chosen.random() < 0.5:
                options |= {"temperature": 1.2, "n": chosen.randint(1, 3)}
            options |= {"max_new_tokens": 24, "min_new_tokens": 24}  # none ends before
            steps, source = chosen.randrange(24), random_prompt(chosen, 40)
            answers.append(cancelling.ask(steps, source, **options)[0])
            pass_steps(engine, chosen.randrange(3))
        assert all(answer.finish(40).cancelled for answer in answers)
        cache = engine.cache
        assert cache.used == cache.reserved == cache.live_tokens == 0
        assert held_bytes(engine) == before
        assert engine.counts().running == engine.counts().waiting == 0
        assert engine._admission._taken == 0
