"""The library's beam search gives the results of transformers' own, and among equal hypotheses the
first ones."""

from __future__ import annotations

import re
from functools import reduce
from itertools import takewhile
from operator import add

import numpy as np
import pytest
import torch
from fusewire import kernels as k
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation import logits_process as hf
from transformers.modeling_outputs import CausalLMOutput

from tests.generation.beam_cases import (
    Case,
    Logits,
    Processor,
    candidates_of,
    plain_search,
    random_logits,
    search,
)
from tests.tolerance import PIPELINE_SCORE

PROMPT = (3, 1)
STOPPING = [False, True, "never"]


class PrefixModel(PreTrainedModel, GenerationMixin):
    """A model whose logits are a function of the whole prefix; it has no cache."""

    config_class = PretrainedConfig

    def __init__(self, vocab: int, logits: Logits) -> None:
        super().__init__(PretrainedConfig(vocab_size=vocab))
        # `generate` reads the model's device from it.
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.logits = logits
        self.calls = 0

    def forward(self, input_ids: torch.Tensor, **_: object) -> CausalLMOutput:
        self.calls += 1
        rows = [self.logits(tuple(prefix)) for prefix in input_ids.tolist()]
        return CausalLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None])


def transformers_search(
    case: Case, vocab: int, logits: Logits, processors: list
) -> tuple[list[tuple[list[int], float, list[float]]], int]:
    """Returns (tokens, score, log-probabilities) of each hypothesis, and the number of steps."""
    model = PrefixModel(vocab, logits).eval()
    with torch.no_grad():
        out = model.generate(
            torch.tensor([PROMPT]),
            num_beams=case.beams,
            num_return_sequences=case.beams,
            max_new_tokens=case.max_tokens,
            eos_token_id=list(case.eos) or None,
            pad_token_id=vocab,  # not a token of the model
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
            do_sample=False,
            use_cache=False,
            logits_processor=hf.LogitsProcessorList(processors),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
    steps = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    found = []
    for sequence, score, log_probs in zip(out.sequences, out.sequences_scores, steps, strict=True):
        tokens = [t for t in sequence[len(PROMPT) :].tolist() if 0 <= t < vocab]
        found.append((tokens, float(score), log_probs[: len(tokens)].tolist()))
    return found, model.calls


def processor_of(processors: list) -> Processor | None:
    if not processors:
        return None

    def process(rows: np.ndarray, prefixes: list[tuple[int, ...]]) -> np.ndarray:
        out = torch.from_numpy(rows.copy())
        ids = torch.tensor(prefixes)
        return hf.LogitsProcessorList(processors)(ids, out).numpy()

    return process


def expect_transformers(case: Case, vocab: int, logits: Logits, processors: list) -> None:
    wanted, steps = transformers_search(case, vocab, logits, processors)
    (got,) = search([(case, logits, PROMPT)], processor_of(processors))
    found = got.search.hypotheses()
    assert [h.tokens.tolist() for h in found] == [tokens for tokens, _, _ in wanted], case
    for ours, (_, score, log_probs) in zip(found, wanted, strict=True):
        assert abs(ours.score - score) <= PIPELINE_SCORE, case
        np.testing.assert_allclose(ours.log_probs, log_probs, 0, PIPELINE_SCORE)
        assert abs(ours.sum - ours.log_probs.sum(dtype=np.float64)) <= PIPELINE_SCORE * 10
        assert ours.log_probs.dtype == np.float32
    assert got.steps == steps, case


def drawn(rng: np.random.Generator) -> tuple[Case, int]:
    """Returns a case that has at least as many candidates as beams: transformers fills missing ones
    with copies."""
    beams, ends = int(rng.integers(2, 7)), int(rng.integers(0, 4))
    vocab = int(rng.integers(beams + ends, 40))
    vocab = max(vocab, max(PROMPT) + 1, ends + 2)
    eos = tuple(int(t) for t in rng.choice(vocab, ends, replace=False))
    penalty = float(rng.choice([-1.0, 0.0, 0.3, 1.0, 2.0]))
    stopping = STOPPING[rng.integers(3)]
    return Case(beams, int(rng.integers(1, 13)), eos, penalty, stopping), vocab


@pytest.mark.parametrize("seed", range(120))
def test_hypotheses_are_those_of_transformers(seed: int):
    case, vocab = drawn(np.random.default_rng(seed))
    expect_transformers(case, vocab, random_logits(vocab, seed, eos=case.eos), [])


@pytest.mark.parametrize("seed", range(30))
def test_processors_change_log_probabilities_that_are_not_normalized_again(seed: int):
    rng = np.random.default_rng(1000 + seed)
    case, vocab = drawn(rng)
    vocab += case.beams  # n-grams and minimal lengths forbid some tokens
    processors = [hf.RepetitionPenaltyLogitsProcessor(float(rng.uniform(0.7, 1.6)))]
    if rng.random() < 0.5:
        processors.append(hf.NoRepeatNGramLogitsProcessor(2))
    if case.eos and rng.random() < 0.5:
        least = len(PROMPT) + case.max_tokens // 2
        processors.append(hf.MinLengthLogitsProcessor(least, list(case.eos)))
    expect_transformers(case, vocab, random_logits(vocab, seed, eos=case.eos), processors)


def test_these_cases_tell_one_rule_from_another():
    """Each option changes the result of some of the cases above."""
    differ = dict.fromkeys(("length_penalty", "early_stopping", "beams"), 0)
    for seed in range(40):
        case, vocab = drawn(np.random.default_rng(seed))
        logits = random_logits(vocab, seed, eos=case.eos)
        for name, value in (
            ("length_penalty", case.length_penalty + 1),
            ("early_stopping", STOPPING[(STOPPING.index(case.early_stopping) + 1) % 3]),
            ("beams", case.beams + 1),
        ):
            other = Case(**{**vars(case), name: value})
            both = search([(case, logits, PROMPT), (other, logits, PROMPT)])
            found = [[h.tokens.tolist() for h in r.search.hypotheses()] for r in both]
            least = min(map(len, found))
            differ[name] += found[0][:least] != found[1][:least]
    assert min(differ.values()) >= 3, differ


@settings(max_examples=150)
@given(
    beams=st.integers(1, 9),
    vocab=st.integers(2, 12),
    ends=st.integers(0, 3),
    levels=st.integers(1, 12),
    max_tokens=st.integers(1, 7),
    forbidden=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    penalty=st.sampled_from([-0.5, 0.0, 1.0, 1.5]),
    stopping=st.sampled_from(STOPPING),
    patience=st.sampled_from([1.0, 1.0, 0.1, 0.5, 1.3, 2.0, 5.0]),
    seed=st.integers(0, 2**31),
)
def test_equal_hypotheses_stand_in_the_order_of_beams_and_tokens(
    beams, vocab, ends, levels, max_tokens, forbidden, penalty, stopping, patience, seed
):
    """This includes cases with fewer candidates than beams, and any patience."""
    eos = tuple(range(min(ends, vocab)))
    case = Case(beams, max_tokens, eos, penalty, stopping, patience=patience)
    logits = random_logits(vocab, seed, eos=eos, levels=levels, forbidden=forbidden)
    wanted = plain_search(case, logits, PROMPT, normalized=True)
    (got,) = search([(case, logits, PROMPT)], lambda rows, prefixes: as_they_are(logits, prefixes))
    found = got.search.hypotheses()
    assert [tuple(h.tokens.tolist()) for h in found] == [f.tokens for f in wanted]
    assert [np.float32(h.score) for h in found] == [f.score for f in wanted]


@pytest.mark.parametrize("patience", [0.25, 1.0, 1.5, 3.0])
def test_a_patient_search_ends_when_so_many_are_finished(patience):
    """Algorithm 1 of Kasai et al., 2022, written independently: every finished hypothesis is kept,
    and the first step that brings them to beams * patience is the last."""
    lengths = set()
    for seed in range(20):
        case = Case(4, 40, (1, 2), 1.0, True, patience=patience)
        logits = random_logits(9, seed, eos=case.eos)
        running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        finished: list[tuple[float, tuple[int, ...]]] = []
        steps = 0
        while running and len(finished) < 4 * patience and steps < 40:
            steps += 1
            scored = []
            for tokens, total in running:
                row = logits((*PROMPT, *tokens)).astype(np.float64)
                row -= np.log(np.exp(row).sum())
                scored += [(total + x, (*tokens, token)) for token, x in enumerate(row)]
            scored.sort(reverse=True)
            ended = [each for each in scored[:4] if each[1][-1] in case.eos]
            finished += [(total / steps, tokens) for total, tokens in ended]
            going = [each for each in scored if each[1][-1] not in case.eos]
            running = [(tokens, total) for total, tokens in going[:4]]
        (got,) = search([(case, logits, PROMPT)])
        lengths.add(steps)
        assert got.steps == steps
        wanted = sorted(finished, reverse=True)[: max(1, round(4 * patience))]
        found = got.search.hypotheses()
        assert [tuple(each.tokens.tolist()) for each in found] == [each for _, each in wanted]
        for one, (score, _) in zip(found, wanted, strict=True):
            assert abs(one.score - score) <= PIPELINE_SCORE
    assert len(lengths) > 1


def test_scores_order_texts_of_any_length():
    """7200 to the power of 10 is infinite in float32."""
    going = k.BeamSearch(beams=2, max_tokens=8000, eos_token_ids=[1], length_penalty=10.0)
    ends = {7140: -3000.0, 7150: -3004.0, 7160: -3100.0}
    for length in range(1, 7161):
        ended = ends.get(length)
        scores = np.array([[ended or -0.1, -0.2, -0.3, -0.4]], np.float32)
        tokens = np.array([[1 if ended else 3, 4, 5, 6]], np.int32)
        beams = np.array([[0, 0, 0, 0]], np.int32)
        k.advance_beams([going], scores, scores, beams, tokens)
        if going.done:
            break
    assert going.length == 7150 or not going.done
    found = going.hypotheses()
    assert [len(each.tokens) for each in found] == [7150, 7140]
    assert [each.score for each in found] == [-3004 / 7150.0**10, -3000 / 7140.0**10]


def as_they_are(logits: Logits, prefixes: list[tuple[int, ...]]) -> np.ndarray:
    """Returns the logits as log-probabilities, whose sums are exact."""
    return np.stack([logits(prefix) for prefix in prefixes])


def test_an_answer_does_not_depend_on_what_it_was_batched_with():
    cases = []
    for seed in range(30):
        case, _ = drawn(np.random.default_rng(seed))
        case = Case(**{**vars(case), "eos": tuple(t % 23 for t in case.eos)})
        cases.append((case, random_logits(23, seed, eos=case.eos), (seed % 23,)))
    together = search(cases)
    for case, batched in zip(cases, together, strict=True):
        (alone,) = search([case])
        for one, two in zip(alone.search.hypotheses(), batched.search.hypotheses(), strict=True):
            np.testing.assert_array_equal(one.tokens, two.tokens)
            np.testing.assert_array_equal(one.log_probs, two.log_probs)
            assert (one.sum, one.score) == (two.sum, two.score)


@settings(max_examples=300)
@given(
    beams=st.integers(1, 8),
    n=st.integers(1, 8),
    vocab=st.integers(2, 30),
    ends=st.integers(0, 3),
    spread=st.sampled_from([1.0, 3.0, 12.0]),
    levels=st.sampled_from([0, 0, 2, 12]),
    max_tokens=st.integers(1, 14),
    forbidden=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    bias=st.sampled_from([0.0, 0.0, 0.7]),
    penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
    stopping=st.sampled_from(STOPPING),
    seed=st.integers(0, 2**31),
)
def test_the_answers_begin_with_all_that_was_settled(
    beams, n, vocab, ends, spread, levels, max_tokens, forbidden, bias, penalty, stopping, seed
):
    """The settled tokens are all that can be known: the common prefix of the running beams and the
    n best hypotheses. `bias`: processors may raise log-probabilities above 0, so that no score is
    out of reach."""
    n = min(n, beams)
    eos = tuple(range(min(ends, vocab)))
    case = Case(beams, max_tokens, eos, penalty, stopping, n)
    logits = random_logits(vocab, seed, eos=eos, levels=levels, forbidden=forbidden)

    def process(rows: np.ndarray, prefixes: list[tuple[int, ...]]) -> np.ndarray:
        return np.stack([logits(prefix) for prefix in prefixes]) * np.float32(spread) + bias

    search_, settled, log_probs = case.new(), [], []
    scores, prefixes = np.zeros(1, np.float32), [PROMPT]
    while not search_.done:
        rows = process(None, prefixes)
        offsets = np.array([0, len(rows)], np.int32)
        found = candidates_of(rows, offsets, scores, [search_.candidates], True)
        searches = [search_]
        k.advance_beams(searches, *found)
        step = k.running_beams(searches)
        settled += step.settled_tokens.tolist()
        log_probs += step.settled_log_probs.tolist()
        assert step.settled_offsets.tolist() == [0, len(step.settled_tokens)]
        scores = step.scores
        histories = [tuple(search_.history(beam).tolist()) for beam in range(len(scores))]
        assert [history[-1] for history in histories] == step.tokens.tolist()
        prefixes = [PROMPT + history for history in histories]
        if search_.done:
            assert step.settled_tokens.size == 0
            break
        best = [tuple(h.tokens.tolist()) for h in search_.hypotheses()[:n]]
        alike = takewhile(lambda at: len(set(at)) == 1, zip(*histories, *best, strict=False))
        assert settled == [at[0] for at in alike]
    for hypothesis in search_.hypotheses()[:n]:
        assert hypothesis.tokens.tolist()[: len(settled)] == settled
        assert hypothesis.log_probs.tolist()[: len(settled)] == log_probs
        assert len(settled) < len(hypothesis.tokens)  # the end is reported with the score


def test_a_search_of_which_nobody_asks_settles_nothing_and_finds_the_same():
    for seed in range(10):
        case = Case(4, 24, (0,), early_stopping=STOPPING[seed % 3])
        logits = random_logits(40, seed, eos=(0,))
        asked, other = case.new(), case.new().again(max_tokens=24, settles=False)
        scores, prefixes = np.zeros(1, np.float32), [PROMPT]
        while not asked.done:
            rows = np.stack([logits(prefix) for prefix in prefixes])
            offsets = np.array([0, len(rows)], np.int32)
            found = candidates_of(rows, offsets, scores, [asked.candidates], False)
            k.advance_beams([asked], *found)
            k.advance_beams([other], *found)
            step, quiet = k.running_beams([asked]), k.running_beams([other])
            assert quiet.tokens.tolist() == step.tokens.tolist()
            assert quiet.settled_tokens.size == 0
            assert quiet.told.tolist() == [0] * other.done
            assert step.told.tolist() == [0] * (asked.done or step.settled_tokens.size > 0)
            assert step.full == (len(step.tokens) == 4)
            scores = step.scores
            histories = [tuple(asked.history(beam).tolist()) for beam in range(len(scores))]
            prefixes = [PROMPT + history for history in histories]
        for one, two in zip(asked.hypotheses(), other.hypotheses(), strict=True):
            assert (one.token_ids, one.score) == (two.token_ids, two.score)


def test_the_best_hypotheses_are_the_first_of_all():
    case = Case(4, 24, (0,))
    (got,) = search([(case, random_logits(40, 3, eos=(0,)), PROMPT)])
    whole, best = got.search.hypotheses(), got.search.hypotheses(2)
    assert len(whole) > 2
    for one, two in zip(whole, best, strict=False):
        log_probs = one.log_probs.tolist()
        assert two.token_ids == one.tokens.tolist()
        assert two.last_log_prob == log_probs[-1]
        assert two.sum_before_last == reduce(add, log_probs[:-1], 0.0)
    assert len(best) == 2


def test_rows_of_searches_are_those_of_each():
    one, two = Case(4, 24, (0, 5)).new(), Case(2, 24, (7,)).new()
    begun = k.search_rows([one, two])
    assert (begun.offsets.tolist(), begun.scores.tolist()) == ([0, 1, 2], [0.0, 0.0])
    assert begun.candidates.tolist() == [12, 4]
    assert begun.ends.tolist() == [[0, 5], [7, -1]]
    scores = np.float32([[-1, -2, -3, -4, *[-np.inf] * 8], [-5, -6, *[-np.inf] * 10]])
    beams, tokens = np.zeros((2, 12), np.int32), np.arange(10, 34, dtype=np.int32).reshape(2, 12)
    beams[scores == -np.inf] = -1
    k.advance_beams([one, two], scores, scores, beams, tokens)
    after = k.search_rows([one, two])
    assert after.offsets.tolist() == [0, 4, 6]
    assert after.scores.tolist() == [-1, -2, -3, -4, -5, -6]
    assert one.scores().tolist() == [-1, -2, -3, -4]


def test_beams_settle_long_before_their_end():
    """This holds in half of these searches, and batched searches settle like single ones."""
    cases, ahead = [], 0
    for seed in range(30):
        case = Case(4, 24, (0,), early_stopping=STOPPING[seed % 3])
        cases.append((case, random_logits(40, seed, eos=(0,)), PROMPT))
    together = search(cases)
    for case, batched in zip(cases, together, strict=True):
        (alone,) = search([case])
        assert batched.settled == alone.settled
        ahead += sum(map(len, batched.settled[: batched.search.length // 2])) > 0
    assert ahead >= 15


def test_a_broken_step_ends_a_search_without_hypotheses():
    case = Case(2, 5, (0,))
    whole, broken = case.new(), case.new()
    rows = np.tile(np.arange(6, dtype=np.float32), (2, 1))
    rows[1, 3] = np.nan
    found = candidates_of(
        rows, np.array([0, 1, 2], np.int32), np.zeros(2, np.float32), [4, 4], False
    )
    searches = [whole, broken]
    k.advance_beams(searches, *found)
    step = k.running_beams(searches)
    assert step.offsets.tolist() == [0, 2, 2]
    assert (broken.broken, broken.done, broken.hypotheses()) == (True, True, [])
    assert (whole.broken, whole.done) == (False, False)
    with pytest.raises(k.Error, match="a search that is done"):
        k.advance_beams([broken], *(each[1:] for each in found))


def test_a_search_ends_where_everything_is_forbidden():
    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(5, np.float32)
        row[4] = -1
        return row if len(prefix) < 4 else np.full(5, -np.inf, np.float32)

    (got,) = search([(Case(3, 9, (4,)), logits, PROMPT)])
    assert got.search.done
    assert got.search.length == 3
    assert got.search.hypotheses() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beams": 0}, "beams: got 0, wanted 1 or more"),
        ({"n": 0}, "n: got 0, wanted 1 to 2, which is beams"),
        ({"n": 3}, "n: got 3, wanted 1 to 2, which is beams"),
        ({"patience": 0.0}, "patience: got 0, wanted a finite number above 0"),
        ({"patience": float("inf")}, "patience: got inf, wanted a finite number above 0"),
        ({"n": 2, "patience": 0.5}, "n: got 2, wanted at most 1, the hypotheses that are kept"),
        ({"max_tokens": 0}, "max_tokens: got 0, wanted 1 or more"),
        ({"length_penalty": float("nan")}, "length_penalty: got nan, wanted a finite number"),
        ({"early_stopping": "always"}, 'early_stopping: got always, wanted True, False or "never"'),
        ({"early_stopping": 1}, "early_stopping: got 1"),
    ],
)
def test_settings_are_checked(given: dict, message: str):
    with pytest.raises(k.Error, match=re.escape(message)):
        k.BeamSearch(**{"beams": 2, "max_tokens": 3, **given})


def test_candidates_that_are_not_the_searchs_are_refused():
    search_ = k.BeamSearch(beams=2, max_tokens=3, eos_token_ids=[1])
    floats, ints = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.int32)
    with pytest.raises(k.Error, match="got beam 1 in candidate 0, wanted 0 to 0"):
        k.advance_beams([search_], floats, floats, ints + 1, ints)
    with pytest.raises(k.Error, match="got 3 candidates for search 0, wanted 4"):
        k.advance_beams([search_], *(each[:, :3] for each in (floats, floats, ints, ints)))
    with pytest.raises(k.Error, match=r"tokens: got \(1, 3\), wanted \(1, 4\)"):
        k.advance_beams([search_], floats, floats, ints, ints[:, :3])
    with pytest.raises(k.Error, match=r"history: got beam 1, wanted one of 1 running"):
        search_.history(1)
