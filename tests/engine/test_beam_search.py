"""Beam search in the engine: every answer is transformers' own, whatever runs beside it, and no
page is lost."""

from __future__ import annotations

import queue
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine.continuation import Delta
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import ComputeFailed, ConfigurationError, DeadlineExceeded, InvalidInput
from fusewire.generation.request import GenerationRequest

from tests.engine.generating import (
    ANSWER_TIMEOUT_S,
    Answer,
    Cancelling,
    allocated_bytes,
    ask,
    between_steps,
    byte_tokenizer,
    held,
    pass_steps,
    spoiled,
)
from tests.engine.test_seq2seq_generation import ENDS, LONGEST, WORDS, seq2seq_folder
from tests.models.tiny_decoders import tiny_decoder
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE

VOCABULARY = 131
DECODERS = ("gpt2", "llama")
SEQ2SEQ = ("bart", "t5", "marian")
STOPPING = [False, True, "never"]


@dataclass
class Reference:
    """transformers' model."""

    model: Any
    encoder_decoder: bool

    def search(
        self, prompt: list[int], num_beams: int, n: int = 1, **options: Any
    ) -> list[tuple[list[int], float, float]]:
        """Of the n best: tokens, score, sum of log-probabilities."""
        options.setdefault("eos_token_id", ENDS)
        device = next(self.model.parameters()).device
        with torch.no_grad():
            out = self.model.generate(
                torch.tensor([prompt], device=device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=device),
                num_beams=num_beams,
                num_return_sequences=n,
                do_sample=False,
                pad_token_id=1,
                return_dict_in_generate=True,
                output_scores=True,  # else there are none of sequences
                **options,
            )
        begin = 1 if self.encoder_decoder else len(prompt)
        if num_beams == 1:
            return [(out.sequences[0, begin:].tolist(), 0.0, 0.0)]
        found = []
        for row, score in enumerate(out.sequences_scores.tolist()):
            length = int((out.beam_indices[row] >= 0).sum())
            tokens = out.sequences[row, begin : begin + length].tolist()
            found.append((tokens, score, score * length ** options.get("length_penalty", 1.0)))
        return found


def loaded(folder: Path, model_type: str, **generation: Any) -> Reference:
    if model_type in SEQ2SEQ:
        model = seq2seq_folder(folder, model_type, **generation)
        # Older versions of transformers divide logits by it, though a decoder may have its own.
        model.config.vocab_size = model.get_output_embeddings().weight.shape[0]
        return Reference(model, encoder_decoder=True)
    model = tiny_decoder(folder, model_type, vocab_size=257, eos_token_id=ENDS)
    byte_tokenizer(folder)
    return Reference(model, encoder_decoder=False)


class Roomy(GenerationEngine):
    """Pages for so many beams of full length, of which tests ask for more at a time."""

    def _pages(self) -> int:
        return 40 * (LONGEST // 16) + 20


def engine_of(folder: Path, device: str = "cpu", dtype: str = "float32") -> GenerationEngine:
    settings = GenerationSettings(
        max_length=LONGEST, max_batch_tokens=LONGEST, max_sequences=40, dtype=dtype
    )
    return Roomy(folder, settings, device)


def expect(answer: Answer, wanted: list[tuple[list[int], float, float]]) -> None:
    for index, (tokens, score, total) in enumerate(wanted):
        assert answer.tokens(index) == tokens
        last = [delta for delta in answer.deltas if delta.index == index][-1]
        # Sums of float32, with lengths to the power of the penalty: relative where they are large.
        assert last.score == pytest.approx(score, PIPELINE_SCORE, PIPELINE_SCORE)
        assert last.cumulative_logprob == pytest.approx(total, PIPELINE_SCORE, PIPELINE_SCORE)
        assert last.num_output_tokens == len(tokens)
        # A forced end is the length's.
        assert last.finish_reason == "length" or tokens[-1] in ENDS
        assert last.finish_reason == "stop" or len(tokens) == answer.most_new_tokens


def random_prompt(chosen: random.Random, longest: int) -> list[int]:
    return [chosen.randrange(10, WORDS) for _ in range(chosen.randint(1, longest))]


def drawn(chosen: random.Random) -> dict[str, Any]:
    beams = chosen.choice([2, 2, 3, 4, 4, 5, 6, 7, 8])
    return {
        "num_beams": beams,
        "n": chosen.randint(1, beams),
        # Of two tokens of which both are forced there is one text.
        "max_new_tokens": chosen.randint(3, 24),
        "length_penalty": chosen.choice([-1.0, 0.0, 0.6, 1.0, 2.0]),
        "early_stopping": chosen.choice(STOPPING),
    }


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", [*DECODERS, *SEQ2SEQ])
def test_beams_are_those_of_transformers(tmp_path, model_type, place):
    """Arriving at any time beside greedy and sampled requests, some cancelled, and slots and pages
    too few for all."""
    reference = loaded(tmp_path, model_type)
    reference.model.to(place.device)
    engine = engine_of(tmp_path, place.device, place.dtype)
    ends = {} if reference.encoder_decoder else {"stop_token_ids": ENDS}
    chosen, cancelling = random.Random(model_type), Cancelling(engine)
    asked, cancelled, neighbours = [], [], []
    for turn in range(30):
        prompt = random_prompt(chosen, 40)
        parameters = drawn(chosen)
        if turn == 9:
            parameters = {"num_beams": 33, "n": 33, "max_new_tokens": 12}
        if turn % 6 == 5:
            parameters["min_new_tokens"] = most = parameters["max_new_tokens"]
            steps = chosen.randrange(most)
            cancelled.append(cancelling.ask(steps, prompt, **parameters, **ends)[0])
        else:
            asked.append((prompt, parameters, ask(engine, prompt, **parameters, **ends)[0]))
        pass_steps(engine, chosen.randrange(3))
        if turn % 3 == 0:
            greedy = random_prompt(chosen, 40)
            neighbours.append((greedy, ask(engine, greedy, max_new_tokens=12, **ends)[0]))
            ask(engine, greedy, max_new_tokens=12, temperature=1.3, n=2)
    lengths = set()
    for prompt, parameters, answer in asked:
        wanted = reference.search(prompt, **parameters)
        expect(answer.finish(parameters["n"]), wanted)
        lengths |= {len(tokens) for tokens, _, _ in wanted}
    for answer in cancelled:
        assert answer.finish().cancelled
    for prompt, answer in neighbours:
        wanted = reference.search(prompt, 1, max_new_tokens=12)
        assert answer.finish().tokens() == wanted[0][0]
    assert len(lengths) > 5
    engine.close()
    assert engine.cache.used == engine.cache.live_tokens == engine.cache.reserved == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("bart")
    return folder


@pytest.fixture(scope="module")
def reference(folder) -> Reference:
    return loaded(folder, "bart", forced_bos_token_id=7)


@pytest.fixture(scope="module")
def engine(folder, reference) -> Iterator[GenerationEngine]:
    with engine_of(folder) as engine:
        yield engine


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_new_tokens": 3},
        {"max_new_tokens": 12, "min_new_tokens": 8},
        {"max_new_tokens": 12, "forced_bos_token_id": 30},
        {"max_new_tokens": 12, "forced_eos_token_id": 9},
        {"max_new_tokens": 12, "suppress_tokens": [*range(8, 40), 121]},
        {"max_new_tokens": 12, "begin_suppress_tokens": [*range(4, 40), 121]},
        {"max_new_tokens": 12, "length_penalty": 10.0},
        {"max_new_tokens": 12, "repetition_penalty": 1.5},
        {"max_new_tokens": 12, "encoder_repetition_penalty": 1.7},
        {"max_new_tokens": 12, "encoder_repetition_penalty": 0.6, "repetition_penalty": 1.2},
        {"max_new_tokens": 12, "repetition_penalty": 0.7, "length_penalty": 2.0},
        {"max_new_tokens": 30, "no_repeat_ngram_size": 2, "min_new_tokens": 25},
        {"max_new_tokens": 12, "bad_words_ids": [[token] for token in range(40, 60)]},
        {"max_new_tokens": 20, "bad_words_ids": [[a, b] for a in range(90) for b in (33, 57)]},
        {
            "max_new_tokens": 12,
            "bad_words_ids": [[token] for token in range(40, 60)],
            "renormalize_logits": True,
        },
    ],
)
def test_options_are_those_of_transformers(engine, reference, parameters):
    """Beside searches that they do not concern."""
    chosen = random.Random(2)
    prompts = [random_prompt(chosen, 50) for _ in range(3)]
    asked = [
        (prompt, given, ask(engine, prompt, num_beams=4, n=3, **given)[0])
        for prompt in prompts
        for given in (parameters, {"max_new_tokens": 12})
    ]
    for prompt, given, answer in asked:
        expect(answer.finish(3), reference.search(prompt, 4, 3, **given))


def test_of_a_list_of_forced_ends_any_is_taken(engine, reference):
    """Ties, which transformers orders otherwise."""
    forced = {"max_new_tokens": 9, "min_new_tokens": 9, "forced_eos_token_id": [23, 9]}
    prompt = random_prompt(random.Random(7), 50)
    answer = ask(engine, prompt, num_beams=4, n=4, **forced)[0].finish(4)
    wanted = reference.search(prompt, 4, 4, **forced)
    for index, (tokens, score, _) in enumerate(wanted):
        last = [delta for delta in answer.deltas if delta.index == index][-1]
        assert last.score == pytest.approx(score, PIPELINE_SCORE)
        assert {last.token, tokens[-1]} <= {23, 9}
    assert [answer.tokens(index)[-1] for index in range(4)] == [9, 23, 9, 23]
    assert answer.tokens(0)[:-1] == wanted[0][0][:-1]


def test_begins_are_suppressed_without_a_forced_one(tmp_path):
    """Of encoder-decoder models and of decoders."""
    options = {"begin_suppress_tokens": [*range(4, 40), 121], "max_new_tokens": 9}
    for model_type in ("t5", "gpt2"):
        (tmp_path / model_type).mkdir()
        reference = loaded(tmp_path / model_type, model_type)
        ends = {} if reference.encoder_decoder else {"stop_token_ids": ENDS}
        with engine_of(tmp_path / model_type) as engine:
            for seed in range(3):
                prompt = random_prompt(random.Random(seed), 30)
                answer = ask(engine, prompt, num_beams=3, n=2, **options, **ends)[0].finish(2)
                expect(answer, reference.search(prompt, 3, 2, **options))


def test_an_answer_is_the_same_alone_and_among_others(engine):
    chosen = random.Random(3)
    asked = [(random_prompt(chosen, 50), drawn(chosen)) for _ in range(12)]
    together = [ask(engine, prompt, **parameters)[0] for prompt, parameters in asked]
    for (prompt, parameters), batched in zip(asked, together, strict=True):
        batched.finish(parameters["n"])
        alone = ask(engine, prompt, **parameters)[0].finish(parameters["n"])
        for index in range(parameters["n"]):
            assert batched.tokens(index) == alone.tokens(index)
        for one, other in zip(batched.deltas, alone.deltas, strict=True):
            assert (one.token, one.text) == (other.token, other.text)
            assert one.logprob == pytest.approx(other.logprob, abs=PIPELINE_SCORE)
            assert (one.score is None) == (other.score is None)


def test_the_best_come_first_with_text_and_score(engine):
    answer = ask(engine, "What~is~read", num_beams=5, n=5, max_new_tokens=9)[0].finish(5)
    lasts = [delta for delta in answer.deltas if delta.finish_reason]
    scores = [delta.score for delta in lasts]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(answer.tokens(index)) for index in range(5)}) == 5
    for index, last in enumerate(lasts):
        shown = [token for token in answer.tokens(index) if token not in ENDS]
        assert answer.text(index) == engine.tokenizer.decode(shown)
        assert last.score == pytest.approx(last.cumulative_logprob / last.num_output_tokens)


@pytest.mark.parametrize("n", [1, 3])
def test_what_cannot_change_is_told_at_once(engine, reference, monkeypatch, n):
    """And once: what comes early and at the end joins to the texts of transformers."""
    chosen, early, steps = random.Random(8), 0, 0
    step = engine.model.step

    def counted(batch, cache):
        nonlocal steps
        steps += 1
        return step(batch, cache)

    monkeypatch.setattr(engine.model, "step", counted)
    for _ in range(8):
        prompt = random_prompt(chosen, 40)
        asked = engine.parameters(num_beams=3, n=n, max_new_tokens=24)
        answer, came = Answer(asked), []

        def note(event, answer=answer, came=came):
            came.append(steps)
            answer.events.put(event)

        engine.submit(GenerationRequest(prompt, asked), None, note)
        wanted = reference.search(prompt, 3, n, max_new_tokens=24)
        expect(answer.finish(n), wanted)
        last = came[-1]
        told = sum(at < last for at in came)
        assert told % n == 0  # of all texts as much
        assert all(delta.score is None for delta in answer.deltas[:told])
        early += told > n  # beyond the first token, which is forced
        for index, (tokens, _, _) in enumerate(wanted):
            shown = [token for token in tokens if token not in ENDS]
            assert answer.text(index) == engine.tokenizer.decode(shown)
    assert early >= 4


def test_cancelled_searches_leave_nothing_behind(folder, reference):
    chosen = random.Random(4)
    with engine_of(folder) as engine:
        cancelling = Cancelling(engine)
        ask(engine, [20] * 40, num_beams=8, max_new_tokens=40)[0].finish()
        before = allocated_bytes(engine)
        for _ in range(200):
            parameters = {**drawn(chosen), "max_new_tokens": 40, "min_new_tokens": 40}
            prompt, steps = random_prompt(chosen, 40), chosen.randrange(40)
            answer, _ = cancelling.ask(steps, prompt, **parameters)
            assert answer.finish(parameters["n"]).cancelled
            cache = engine.cache
            assert cache.used == cache.reserved == cache.live_tokens == 0
        assert allocated_bytes(engine) == before
        assert engine.counts().running == 0
        assert engine._admission._taken == 0


def test_python_does_little_more_for_more_searches(engine, monkeypatch):
    whole, answers_of = engine._loop.step, engine._loop._search_answers
    tell = answers_of.tell_settled

    def tell_unseen() -> None:
        noted = sys.getprofile()
        sys.setprofile(None)
        tell()
        sys.setprofile(noted)

    monkeypatch.setattr(answers_of, "tell_settled", tell_unseen)

    def calls_of_a_step(searches: int) -> int:
        """Of Python's functions, but for those that tell what is certain, where all go on."""
        found = []

        def step(now: float) -> None:
            calls = 0

            def note(frame: object, event: str, argument: object) -> None:
                nonlocal calls
                calls += event == "call"

            sys.setprofile(note)
            try:
                whole(now)
            finally:
                sys.setprofile(None)
            groups = list(engine._loop.scheduler._running.groups)
            if len(groups) == searches and all(group.rows for group in groups):
                found.append(calls)

        monkeypatch.setattr(engine._loop, "step", step)
        asked = {"num_beams": 2, "max_new_tokens": 16, "ignore_eos": True}
        with held(engine):
            answers = [
                ask(engine, [20 + n] * 5, **asked, forced_bos_token_id=None)[0]
                for n in range(searches)
            ]
        for answer in answers:
            answer.finish()
        return min(found)

    few, many = calls_of_a_step(2), calls_of_a_step(16)
    # Pages that few copy at no step: nothing of each.
    assert many - few < 14


def test_prefixes_are_shared_and_what_was_searched_is_not_found(tmp_path):
    reference = loaded(tmp_path, "gpt2")
    prompt = random_prompt(random.Random(5), 1) * 37
    with engine_of(tmp_path) as engine:
        for cached in (0, 32):
            answer, _ = ask(
                engine, prompt, num_beams=3, n=3, max_new_tokens=20, stop_token_ids=ENDS
            )
            expect(answer.finish(3), reference.search(prompt, 3, 3, max_new_tokens=20))
            assert answer.deltas[-1].num_cached_tokens == cached
        assert engine.cache.cached == 2


def test_a_search_that_can_never_fit_is_refused_with_what_it_needs(folder, reference):
    class Small(GenerationEngine):
        def _pages(self) -> int:
            return 12

    settings = GenerationSettings(max_length=LONGEST, max_batch_tokens=LONGEST)
    with Small(folder, settings) as engine:
        # One page of the source; three of 16 tokens for each beam, the first of them shared once.
        match = "num_beams: got 4 beams of up to 41 tokens, which can need 13 pages, wanted at most"
        with pytest.raises(InvalidInput, match=match):
            ask(engine, [20] * 5, num_beams=4, max_new_tokens=40)
        answer, _ = ask(engine, [20] * 5, num_beams=4, max_new_tokens=32)
        expect(answer.finish(), reference.search([20] * 5, 4, max_new_tokens=32))


@pytest.mark.parametrize("named", [{}, {"max_new_tokens": 12}])
def test_a_folder_whose_beams_can_never_fit_is_not_loaded(tmp_path, named):
    """Unless it says how long texts are; each request would be refused."""
    seq2seq_folder(tmp_path, "bart", num_beams=4, **named)

    class Small(GenerationEngine):
        def _pages(self) -> int:
            return 12

    settings = GenerationSettings(max_length=LONGEST, max_batch_tokens=LONGEST)
    if named:
        with Small(tmp_path, settings) as engine:
            assert ask(engine, [20] * 5)[0].finish().tokens()
        return
    words = r"^generation_config\.json: num_beams: got 4 beams of up to 64 tokens, which can need"
    with pytest.raises(ConfigurationError, match=words):
        Small(tmp_path, settings)


def test_more_candidates_than_a_step_sorts_are_refused(engine):
    ends = list(range(60, 125))  # beside the model's six
    ask(engine, [20] * 5, num_beams=28, max_new_tokens=5, stop_token_ids=ends)[0].finish()
    with pytest.raises(InvalidInput, match="num_beams: got 29, wanted at most 28 with 71 tokens"):
        ask(engine, [20] * 5, num_beams=29, max_new_tokens=5, stop_token_ids=ends)
    assert engine._admission._taken == 0


def test_logits_that_are_not_finite_end_the_search_alone(engine, reference):
    chosen = random.Random(6)
    prompts = [random_prompt(chosen, 30) for _ in range(2)]

    def one_nan(logits):
        logits[-1, 3] = np.nan

    with spoiled(engine, one_nan), pytest.raises(ComputeFailed, match="NaN"):
        ask(engine, prompts[0], num_beams=3, max_new_tokens=9)[0].finish()
    assert engine.cache.used == engine.cache.reserved == 0
    answer, _ = ask(engine, prompts[1], num_beams=3, max_new_tokens=9)
    expect(answer.finish(), reference.search(prompts[1], 3, max_new_tokens=9))


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5}])
@pytest.mark.parametrize("beams", [1, 3])
def test_logits_that_leave_no_token_are_the_models_fault(engine, beams, options):
    """With and without beams; so are they where what a request forbids would be another's."""

    def nothing(logits):
        logits[:] = -np.inf

    asked = {"num_beams": beams, "max_new_tokens": 9, "forced_bos_token_id": None, **options}
    with spoiled(engine, nothing), pytest.raises(ComputeFailed, match="NaN or infinite"):
        # The first token of the folder is forced, the second is not.
        ask(engine, [20] * 5, **asked)[0].finish()
    assert engine.cache.used == engine.cache.reserved == 0


def test_a_failed_step_frees_its_searches(engine, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fusewire.engine.beam_forks.kernels.fork_pages", fail)
    with pytest.raises(ComputeFailed):
        ask(engine, [20] * 5, num_beams=3, max_new_tokens=9)[0].finish()
    assert engine.cache.used == engine.cache.reserved == engine.cache.live_tokens == 0


@pytest.mark.parametrize("early", [0, 3])
def test_a_callback_that_raises_ends_its_search_alone(engine, reference, early):
    """Told of a token that is certain, it raises while a step with beams of others is computed."""
    options = {"num_beams": 3, "max_new_tokens": 24}
    parameters = engine.parameters(**options, min_new_tokens=24)
    answer, prompt = Answer(parameters), random_prompt(random.Random(9), 40)

    def refuse(event: Any) -> None:
        if isinstance(event, Delta):
            raise ZeroDivisionError
        answer.events.put(event)

    with held(engine):
        others = [ask(engine, prompt, **options)[0] for _ in range(early)]
        engine.submit(GenerationRequest([20] * 5, parameters), None, refuse)
        others.append(ask(engine, prompt, **options)[0])
        drawn_alone = ask(engine, prompt, max_new_tokens=24, min_new_tokens=24)[0]
    with pytest.raises(ComputeFailed):
        answer.next()
    wanted = reference.search(prompt, 3, max_new_tokens=24)
    for other in others:
        expect(other.finish(), wanted)
    assert len(drawn_alone.finish().tokens()) == 24
    assert between_steps(engine, lambda: engine.cache.used) == 0


def test_a_callback_that_raises_at_the_end_of_its_search_gets_an_error(engine):
    """With several texts: all of them end in the same step, and the first is refused."""
    parameters = engine.parameters(num_beams=3, n=2, max_new_tokens=8)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def refuse(event: Any) -> None:
        told.put(event)
        if isinstance(event, Delta) and event.score is not None:
            raise ZeroDivisionError

    engine.submit(GenerationRequest([20] * 5, parameters), None, refuse)
    while isinstance(event := told.get(timeout=ANSWER_TIMEOUT_S), Delta):
        assert event.score is None or event.index == 0
    assert isinstance(event, ComputeFailed)
    assert between_steps(engine, lambda: engine.cache.used) == 0


def test_a_deadline_ends_a_search(engine, monkeypatch):
    step, steps = engine._loop.step, []

    def until_an_hour_later(now):
        steps.append(now)
        step(now if len(steps) < 10 else now + 3600)

    monkeypatch.setattr(engine._loop, "step", until_an_hour_later)
    with pytest.raises(DeadlineExceeded):
        ask(
            engine,
            [20] * 5,
            num_beams=8,
            max_new_tokens=60,
            min_new_tokens=60,
            timeout_seconds=1800,
        )[0].finish()
    assert len(steps) == 10
    assert engine.cache.used == engine.cache.reserved == 0


def test_constraints_that_forbid_everything_are_refused(engine):
    with pytest.raises(InvalidInput, match="forbid every possible next token"):
        ask(
            engine,
            [20] * 5,
            num_beams=3,
            max_new_tokens=9,
            min_new_tokens=9,
            bad_words_ids=[[token] for token in range(VOCABULARY)],
        )[0].finish()
    assert engine.cache.used == engine.cache.reserved == 0


def test_fewer_texts_than_wanted_are_an_error(engine, reference):
    """One of two tokens that are both forced, where transformers repeats dead beams."""
    one = ask(engine, [20] * 5, num_beams=3, max_new_tokens=2)[0].finish()
    assert one.tokens() == reference.search([20] * 5, 3, max_new_tokens=2)[0][0]
    with pytest.raises(InvalidInput, match="n: got 2, wanted at most 1, the texts that this"):
        ask(engine, [20] * 5, num_beams=3, n=2, max_new_tokens=2)[0].finish(2)


def test_the_folder_names_the_beams(tmp_path):
    seq2seq_folder(tmp_path, "bart", num_beams=4, length_penalty=2.0, early_stopping=True)
    with engine_of(tmp_path) as engine:
        parameters = engine.parameters()
        assert (parameters.num_beams, parameters.length_penalty) == (4, 2.0)
        assert parameters.early_stopping is True
        assert engine.parameters(num_beams=1).searches is False
        assert engine.parameters(temperature=1.0).searches is False
        assert engine.parameters(logprobs=1).searches is False
        assert engine.parameters(n=3).n == 3
        with pytest.raises(InvalidInput, match="n: got 5, wanted at most 4, which is num_beams"):
            engine.parameters(n=5)
