"""The sampler does to each row what transformers' processors do, and says how likely it was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fusewire.engine.logits_processor import LogitsProcessor
from fusewire.engine.sampling import Sampler
from fusewire.engine.sampling_rows import SamplingRows
from fusewire.engine.sampling_rules import SamplingRules
from fusewire.engine.sampling_state import SamplingState
from fusewire.placement import Placement
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from tests.places import CPU, GPU, GPU_FP32, rounded

VOCAB = 60


@dataclass(frozen=True)
class Parameters:
    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_new_tokens: int = 0
    logprobs: int | None = None


@dataclass(frozen=True)
class Sequence:
    """A row of a batch before its next token."""

    parameters: Parameters
    prompt: list[int]
    answer: list[int]
    stops: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    seed: int = 0
    source: list[int] = field(default_factory=list)

    def state(self) -> SamplingState:
        rules = SamplingRules(self.parameters, self.stops, self.bad_words)
        state = SamplingState(rules, self.prompt, self.seed, source_ids=self.source)
        for token in self.answer:
            SamplingRows([state]).append([token])
        return state


def processed(logits: np.ndarray, s: Sequence) -> np.ndarray:
    """The row behind transformers' processors, and presence and frequency as OpenAI defines them,
    in fp64: -inf where a token is forbidden."""
    p, ids = s.parameters, torch.tensor([s.prompt + s.answer])
    scores = torch.from_numpy(logits).double()[None]
    words = [word for word in s.bad_words if word not in [[stop] for stop in s.stops]]
    if p.logit_bias:
        biases = {(token,): float(bias) for token, bias in p.logit_bias.items()}
        scores = hf.SequenceBiasLogitsProcessor(biases)(ids, scores)
    if p.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(p.repetition_penalty)(ids, scores)
    counts = torch.bincount(torch.tensor(s.answer, dtype=torch.int64), minlength=VOCAB)
    scores = scores - (counts > 0) * p.presence_penalty - counts * p.frequency_penalty
    if p.no_repeat_ngram_size:
        scores = hf.NoRepeatNGramLogitsProcessor(p.no_repeat_ngram_size)(ids, scores)
    if p.encoder_no_repeat_ngram_size:
        source = torch.tensor([s.source], dtype=torch.int64)
        scores = hf.EncoderNoRepeatNGramLogitsProcessor(p.encoder_no_repeat_ngram_size, source)(
            ids, scores
        )
    if words:
        scores = hf.NoBadWordsLogitsProcessor(words, s.stops or None)(ids, scores)
    if p.min_new_tokens and s.stops:
        wait = hf.MinNewTokensLengthLogitsProcessor(len(s.prompt), p.min_new_tokens, s.stops)
        scores = wait(ids, scores)
    if p.suppress_tokens:
        scores = hf.SuppressTokensLogitsProcessor(p.suppress_tokens)(ids, scores)
    begin = hf.SuppressTokensAtBeginLogitsProcessor(p.begin_suppress_tokens, len(s.prompt))
    return begin(ids, scores)[0].numpy()


def warped(scores: np.ndarray, p: Parameters) -> np.ndarray:
    """Probabilities behind transformers' warpers."""
    x = torch.from_numpy(scores)[None] / p.temperature
    if p.top_k:
        x = hf.TopKLogitsWarper(p.top_k)(None, x)
    if p.top_p < 1:
        x = hf.TopPLogitsWarper(p.top_p)(None, x)
    if p.min_p:
        x = hf.MinPLogitsWarper(p.min_p)(None, x)
    if p.typical_p < 1:
        x = hf.TypicalLogitsWarper(p.typical_p)(None, x)
    return x.softmax(-1)[0].numpy()


class Drawn(NamedTuple):
    """A row of `Draws`."""

    token: int
    logprob: float
    rank: int
    top_logprobs: Any
    forbidden: bool


def sample(place: Placement, logits: np.ndarray, states: list[SamplingState]) -> list[Drawn]:
    sampler = Sampler(place, logits.shape[1])
    draws = sampler.sample(place.floats(logits.copy()), SamplingRows(states))
    return [
        Drawn(*columns, draws.top_logprobs.get(row, ()), row in draws.forbidden)
        for row, columns in enumerate(zip(*draws[:2], draws.ranks, strict=True))
    ]


TOKENS = st.lists(st.integers(0, 11), max_size=30)  # few different ones: they repeat


@st.composite
def sequences(draw) -> Sequence:
    parameters = Parameters(
        temperature=draw(st.floats(0.3, 3)),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 30])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.5, 0.9])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.3, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, -1.0, 0.6])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.3, 0.4])),
        no_repeat_ngram_size=draw(st.integers(0, 4)),
        encoder_no_repeat_ngram_size=draw(st.integers(0, 3)),
        suppress_tokens=tuple(draw(st.lists(st.integers(0, 20), max_size=3))),
        begin_suppress_tokens=tuple(draw(st.lists(st.integers(0, 40), max_size=20))),
        logit_bias=draw(
            st.dictionaries(st.integers(0, 20), st.sampled_from([-100.0, -2.0, 3.0]), max_size=5)
        ),
        min_new_tokens=draw(st.integers(0, 20)),
    )
    words = st.lists(st.integers(0, 11), min_size=1, max_size=3)
    return Sequence(
        parameters,
        draw(TOKENS.filter(bool)),
        draw(TOKENS),
        draw(st.lists(st.integers(0, 15), max_size=3)),
        draw(st.lists(words, max_size=6)),
        draw(st.integers(-(2**70), 2**70)),
        draw(TOKENS),
    )


@settings(max_examples=60)
@given(batch=st.lists(sequences(), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
def test_any_combination_leaves_what_transformers_leaves(place, batch, seed):
    rng, draws = np.random.default_rng(seed), 400
    logits = (rng.standard_normal((len(batch), VOCAB)) * 2).astype(np.float32)
    wanted = []
    for row, s in zip(logits, batch, strict=True):
        scores, p = processed(row, s), s.parameters
        wanted.append(warped(scores, p))
        for name in ("top_p", "min_p", "typical_p"):  # the last digits decide: no fair question
            for by in (1 - 1e-4, 1 + 1e-4):
                moved = replace(p, **{name: min(getattr(p, name) * by, 1.0)})
                assume(((warped(scores, moved) > 0) == (wanted[-1] > 0)).all())
    # The same sequence many times, each copy with a seed of its own.
    copies = [replace(s, seed=s.seed + i) for s in batch for i in range(draws)]
    drawn = sample(place, np.repeat(logits, draws, 0), [s.state() for s in copies])
    tokens = np.array([each.token for each in drawn]).reshape(len(batch), draws)
    for row, probabilities in zip(tokens, wanted, strict=True):
        counts = np.bincount(row, minlength=VOCAB)
        assert (probabilities[counts > 0] > 0).all()
        assert (counts[probabilities * draws > 40] > 0).all()


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(repetition_penalty=1.5),
        Parameters(repetition_penalty=0.8, logit_bias={3: 2.0, 7: -1.5}),
        Parameters(presence_penalty=0.7),
        Parameters(frequency_penalty=0.4),
        Parameters(repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=0.3, top_k=30),
        Parameters(no_repeat_ngram_size=2, min_new_tokens=9, top_p=0.9, temperature=1.5),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_transformers_says(parameters: Parameters, place: Placement):
    rng, draws = np.random.default_rng(1), 10_000
    logits = rng.standard_normal(VOCAB).astype(np.float32)
    s = Sequence(parameters, [1, 2, 3, 1, 4], [3, 1, 2, 9, 9, 3, 1], [5, 6], [[8], [1, 12]])
    wanted = warped(processed(logits, s), parameters)
    # One row after the processors, drawn from many times.
    rows = place.floats(logits[None].copy())
    LogitsProcessor(place, VOCAB).process(rows, [s.state()])
    np.testing.assert_allclose(place.numpy(rows)[0], processed(logits, s), rtol=1e-5, atol=1e-6)
    drawn = sample(
        place,
        np.tile(logits, (draws, 1)),
        [replace(s, seed=i).state() for i in range(draws)],
    )
    counts = np.bincount([each.token for each in drawn], minlength=VOCAB)
    assert (counts[wanted == 0] == 0).all()
    expected = wanted[wanted * draws > 10] * draws
    chi_square = ((counts[wanted * draws > 10] - expected) ** 2 / expected).sum()
    freedom = len(expected)
    assert chi_square <= freedom + 7 * np.sqrt(2 * freedom) + 24


def test_a_state_kept_token_by_token_is_that_of_the_whole_sequence(place: Placement):
    rng = np.random.default_rng(2)
    parameters = Parameters(
        temperature=1.5,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        no_repeat_ngram_size=2,
        min_new_tokens=5,
    )
    s = Sequence(parameters, [1, 2, 1, 2, 3], [], [4], [[5], [6, 7]], seed=9)
    state = s.state()
    for step in range(100):
        logits = rng.standard_normal((1, VOCAB)).astype(np.float32)
        [kept] = sample(place, logits, [state])
        [fresh] = sample(place, logits, [s.state()])
        assert kept == fresh
        s = replace(s, answer=[*s.answer, kept.token])
        assert state.new_tokens == step + 1
    pairs = list(zip(s.answer[:-1], s.answer[1:], strict=True))
    assert len(set(pairs)) == len(pairs)
    assert 4 not in s.answer[:5]
    assert 5 not in s.answer
    assert (6, 7) not in pairs


def test_continuations_of_one_prompt_know_nothing_of_each_other(place: Placement):
    parameters = Parameters(repetition_penalty=1.3, frequency_penalty=0.1, no_repeat_ngram_size=3)
    s = Sequence(parameters, [1, 2, 1, 2, 3, 1, 2], [], [4], [[5], [6, 7], [2, 2, 8]])
    first = s.state()
    states = [first, *(first.fork(seed) for seed in (1, 2, 3))]
    answers: list[list[int]] = [[] for _ in states]
    rng = np.random.default_rng(4)
    for _ in range(60):
        logits = rng.standard_normal((len(states), VOCAB)).astype(np.float32)
        logits[:, 10:] -= 5  # few tokens, which repeat
        alone = [replace(s, answer=a, seed=i).state() for i, a in enumerate(answers)]
        drawn = sample(place, logits, states)
        assert drawn == sample(place, logits, alone)
        for answer, each in zip(answers, drawn, strict=True):
            answer.append(each.token)


def test_the_same_seed_gives_the_same_tokens_whatever_the_batch(place: Placement):
    rng = np.random.default_rng(3)
    logits = rounded(rng.standard_normal((20, VOCAB)).astype(np.float32), place.dtype)
    mine = Sequence(Parameters(temperature=1.2, top_p=0.9), [1, 2], [], seed=77)
    alone, together = mine.state(), mine.state()
    for row in logits:
        penalty, others = Parameters(repetition_penalty=2.0, logprobs=3), int(rng.integers(0, 9))
        states = [Sequence(penalty, [3], [], seed=i).state() for i in range(others)]
        at = int(rng.integers(0, others + 1))
        batch = rng.standard_normal((others + 1, VOCAB)).astype(np.float32)
        batch[at] = row
        states.insert(at, together)
        [one] = sample(place, row[None], [alone])
        got = sample(place, batch, states)[at]
        assert got.token == one.token
        assert got.logprob == pytest.approx(one.logprob, abs=1e-5)


def test_seeds_beyond_64_bits_and_none_like_another(place: Placement):
    logits = np.zeros((6, 50021), np.float32)
    seeds = [0, 1, -1, 2**63, 2**64 - 1, 2**64 + 1]
    drawn = sample(place, logits, [Sequence(Parameters(), [1], [], seed=s).state() for s in seeds])
    tokens = [each.token for each in drawn]
    assert tokens[2] == tokens[4]  # the same 64 bits
    assert tokens[1] == tokens[5]
    assert len({*tokens}) == 4


def test_logprobs_are_those_of_the_models_own_logits(place: Placement):
    rng = np.random.default_rng(4)
    logits = rounded((rng.standard_normal((4, 500)) * 3).astype(np.float32), place.dtype)
    parameters = [
        Parameters(logprobs=5, temperature=0.5, repetition_penalty=3.0),
        Parameters(greedy=True, logprobs=0),
        Parameters(logprobs=None, top_k=4, logit_bias={3: 9.0}),
        Parameters(logprobs=20, temperature=0.0),
    ]
    drawn = sample(place, logits, [Sequence(p, [1, 2], [7]).state() for p in parameters])
    wanted = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for row, (each, p) in enumerate(zip(drawn, parameters, strict=True)):
        assert each.logprob == pytest.approx(wanted[row, each.token], abs=1e-5)
        best = np.argsort(-wanted[row], kind="stable")[: p.logprobs or 0]
        assert [token for token, _ in each.top_logprobs] == best.tolist()
        values = [value for _, value in each.top_logprobs]
        np.testing.assert_allclose(values, wanted[row, best], atol=1e-5)
    assert drawn[1].token == logits[1].argmax()
    assert drawn[3].token == logits[3].argmax()


def test_a_row_without_a_distribution_gives_minus_one_and_harms_no_other(place: Placement):
    logits = np.zeros((3, VOCAB), np.float32)
    logits[1, 5] = np.nan
    everything = [[token] for token in range(VOCAB)]
    sequences = [
        Sequence(Parameters(), [1], []),
        Sequence(Parameters(logprobs=2), [1], []),
        Sequence(Parameters(), [1], [], bad_words=everything),
    ]
    states = [s.state() for s in sequences]
    drawn = sample(place, logits, states)
    assert [each.token >= 0 for each in drawn] == [True, False, False]
    assert [each.forbidden for each in drawn] == [False, False, True]  # whose fault it is
    assert [state.new_tokens for state in states] == [1, 0, 0]


@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_a_stop_token_beyond_the_vocabulary_harms_nobody(place: Placement):
    waits = Parameters(min_new_tokens=3, top_k=10**12)
    [one] = sample(
        place,
        np.zeros((1, VOCAB), np.float32),
        [Sequence(waits, [1], [], stops=[2, VOCAB + 3, 2**31 - 1]).state()],
    )
    assert 0 <= one.token < VOCAB
    assert one.token != 2
