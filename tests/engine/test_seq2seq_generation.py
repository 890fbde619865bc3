"""Requests of encoder-decoder models share steps, and each is answered as transformers answers it
alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.seeds import seed_of
from fusewire.errors import ComputeFailed, ConfigurationError, InvalidInput

from tests.engine.generating import (
    Cancelling,
    ShortOfPages,
    allocated_bytes,
    ask,
    between_steps,
    byte_tokenizer,
    held,
    pass_steps,
)
from tests.models.tiny_seq2seq import tiny_seq2seq
from tests.places import CPU, GPU_FP32

LONGEST = 64  # of sources and targets
ENDS = [2, 5, 9, 17, 23, 40]  # so many that answers differ in length
WORDS = 77  # that every model has, as source and target

Reference = Callable[..., list[int]]


def seq2seq_folder(folder: Path, model_type: str, **generation: Any) -> Any:
    """A tiny model with a tokenizer; transformers' model. `generation`: of its
    generation_config.json."""
    model = tiny_seq2seq(folder, model_type)
    model.generation_config.update(eos_token_id=ENDS, **generation)
    model.generation_config.save_pretrained(folder)
    byte_tokenizer(folder)
    return model


def answered_by(model: Any) -> Reference:
    """What transformers generates of a source, without the token in front."""

    def generate(source: list[int], **parameters: Any) -> list[int]:
        with torch.no_grad():
            device = next(model.parameters()).device
            ids = torch.tensor([source], device=device)
            return model.generate(ids, do_sample=False, num_beams=1, **parameters)[0].tolist()[1:]

    return generate


def random_sources(count: int, seed: int, longest: int = LONGEST) -> list[list[int]]:
    chosen = random.Random(seed)
    lengths = [chosen.randint(1, longest) for _ in range(count)]
    return [[chosen.randrange(3, WORDS) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("bart")
    return folder


@pytest.fixture(scope="module")
def model(folder) -> Any:
    return seq2seq_folder(folder, "bart", forced_bos_token_id=7)


@pytest.fixture(scope="module")
def reference(model) -> Reference:
    return answered_by(model)


@pytest.fixture(scope="module")
def engine(folder, reference) -> Iterator[GenerationEngine]:
    engine = GenerationEngine(folder, GenerationSettings(max_batch_tokens=LONGEST, max_sequences=8))
    yield engine
    engine.close()


def test_what_steps_over_sources_cost_is_measured(engine):
    used = engine.counts().used_pages
    engine.measure_costs()
    assert engine._admission.times.costs.seconds(16, 0.0) > 0
    counts = engine.counts()
    assert (counts.used_pages, counts.running, counts.waiting) == (used, 0, 0)


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", ["bart", "marian", "t5"])
def test_greedy_tokens_are_those_of_transformers(tmp_path, model_type, place):
    """Twelve at once with more pages than there are, then some at any time, some twice, a sixth of
    them cancelled."""
    reference = answered_by(seq2seq_folder(tmp_path, model_type).to(place.device))
    settings = GenerationSettings(
        max_length=LONGEST, max_batch_tokens=LONGEST, max_sequences=16, dtype=place.dtype
    )
    engine = ShortOfPages(tmp_path, settings, place.device)
    chosen = random.Random(model_type)
    whole, cancelled = [], []
    with held(engine):
        # Three begin with a page of a source and one of an answer each, and all would grow to three
        # of the answer: twelve pages where there are ten.
        assert engine.cache.pages == 10
        for source in random_sources(12, 1, longest=16):
            parameters = {"min_new_tokens": 45, "max_new_tokens": 45}
            whole.append((source, parameters, ask(engine, source, **parameters)[0]))
    cancelling = Cancelling(engine)
    sources = random_sources(14, 2, longest=24) + random_sources(14, 3)
    for source in [each for each in sources for _ in range(chosen.choice([1, 1, 2]))]:
        least, most = chosen.choice([(0, 1), (0, 2), (0, 20), (45, 45)])
        if chosen.random() < 1 / 6:
            parameters = {"min_new_tokens": 45, "max_new_tokens": 45}
            steps = chosen.randrange(45)
            answer, ticket = cancelling.ask(steps, source, **parameters)
            cancelled.append((source, parameters, answer))
        else:
            parameters = {"min_new_tokens": least, "max_new_tokens": most}
            answer, ticket = ask(engine, source, **parameters)
            whole.append((source, parameters, answer))
        assert ticket.num_input_tokens == len(source)
        pass_steps(engine, chosen.randrange(4))
    for source, parameters, answer in whole:
        assert answer.finish().tokens() == reference(source, **parameters)
    assert cancelled
    for source, parameters, answer in cancelled:
        tokens = answer.finish().tokens()
        assert answer.cancelled
        assert tokens == reference(source, **parameters)[: len(tokens)]
    source, parameters, _ = whole[-1]  # whose pages nobody took since
    assert ask(engine, source, **parameters)[0].finish().deltas[0].num_cached_tokens > 0
    counts = engine.counts()
    assert counts.prefix_hit_tokens > 0
    assert counts.preemptions > 0
    engine.close()
    assert engine.cache.used == engine.cache.live_tokens == 0


def test_cancelled_requests_leave_nothing_behind(folder, reference):
    settings = GenerationSettings(max_length=LONGEST, max_batch_tokens=LONGEST, max_sequences=8)
    chosen, sources = random.Random(4), random_sources(300, 4)
    with ShortOfPages(folder, settings) as engine:

        def after_the_same_request() -> int:
            asked = {"n": 2, "temperature": 1.0, "seed": 1, "max_new_tokens": 25}
            ask(engine, sources[0], **asked)[0].finish(2)
            return allocated_bytes(engine)

        before = after_the_same_request()
        for source in sources:
            answer, ticket = ask(engine, source, n=2, temperature=1.0, max_new_tokens=25)
            for _ in range(chosen.randrange(4)):
                if answer.next().finish_reason:
                    break
            ticket.cancel()
            answer.finish(2)
        assert after_the_same_request() == before  # an engine keeps what its last step was given
        assert engine.cache.used == engine.cache.live_tokens == 0


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
        {"max_new_tokens": 12, "min_new_tokens": 8},
        {"max_new_tokens": 12, "forced_bos_token_id": 30},
        {"max_new_tokens": 12, "forced_eos_token_id": 9},
        {"max_new_tokens": 12, "min_new_tokens": 12, "forced_eos_token_id": [17, 9]},
        {"max_new_tokens": 12, "suppress_tokens": [*range(8, 40), 121]},
        {"max_new_tokens": 9, "suppress_tokens": ENDS[:-1], "forced_eos_token_id": [40, 9]},
        {"max_new_tokens": 12, "begin_suppress_tokens": [*range(4, 40), 121]},
        {"max_new_tokens": 12, "repetition_penalty": 1.5},
        {"max_new_tokens": 12, "encoder_repetition_penalty": 1.7},
        {"max_new_tokens": 12, "encoder_repetition_penalty": 0.6, "repetition_penalty": 1.2},
        {"max_new_tokens": 30, "no_repeat_ngram_size": 2, "min_new_tokens": 25},
        {"max_new_tokens": 12, "bad_words_ids": [[token] for token in range(10, 125)]},
    ],
)
def test_options_are_those_of_transformers(engine, reference, parameters):
    asked = [(source, ask(engine, source, **parameters)[0]) for source in random_sources(4, 2)]
    for source, answer in asked:
        assert answer.finish().tokens() == reference(source, **parameters)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_ngrams_of_the_source_are_not_written(engine, model, n, beams):
    """Sources of what the model likes to write."""
    chosen, banned = random.Random(n), {"encoder_no_repeat_ngram_size": n, "num_beams": beams}
    sources = [chosen.choices([4, 18, 22, 30, 121], k=60) for _ in range(5)]
    asked = [ask(engine, each, max_new_tokens=20, **banned)[0] for each in sources]
    free = [ask(engine, each, max_new_tokens=20, num_beams=beams)[0] for each in sources]
    changed = 0
    for source, answer, other in zip(sources, asked, free, strict=True):
        wanted = model.generate(
            torch.tensor([source]), do_sample=False, max_new_tokens=20, **banned
        )
        assert answer.finish().tokens() == wanted[0, 1:].tolist()
        changed += answer.tokens() != other.finish().tokens()
    assert changed > 0


def test_a_folder_names_the_ngrams_of_the_source(tmp_path):
    """As those of Blenderbot do, where decoders refuse it."""
    options = {"num_beams": 4, "encoder_no_repeat_ngram_size": 3, "no_repeat_ngram_size": 3}
    reference = answered_by(seq2seq_folder(tmp_path, "blenderbot", **options))
    with GenerationEngine(tmp_path, GenerationSettings(max_length=LONGEST)) as engine:
        assert engine.parameters().encoder_no_repeat_ngram_size == 3
        for source in random_sources(3, 8):
            answer = ask(engine, source, num_beams=1, max_new_tokens=12)[0].finish()
            assert answer.tokens() == reference(source, max_new_tokens=12)


def test_forced_tokens_are_certain_and_a_forced_end_is_the_lengths(engine):
    source = random_sources(1, 3)[0]
    deltas = ask(engine, source, max_new_tokens=6, min_new_tokens=6)[0].finish().deltas
    assert [delta.token for delta in deltas][:: len(deltas) - 1] == [7, 2]
    assert [delta.logprob == 0 for delta in deltas] == [True, False, False, False, False, True]
    assert deltas[-1].finish_reason == "length"
    assert deltas[-1].cumulative_logprob == pytest.approx(sum(d.logprob for d in deltas))


def test_the_source_is_no_part_of_the_text(engine):
    answer = ask(engine, "What~is~read", max_new_tokens=9)[0].finish()
    assert answer.text() == engine.tokenizer.decode([t for t in answer.tokens() if t not in ENDS])
    of_ids = engine.tokenizer.backend.encode("What~is~read").ids
    assert ask(engine, of_ids, max_new_tokens=9)[0].finish().tokens() == answer.tokens()


def test_every_continuation_is_what_its_seed_alone_would_be(engine):
    source = random_sources(1, 5)[0]
    sampled = {"max_new_tokens": 12, "temperature": 1.5, "top_k": 50}
    answer, _ = ask(engine, source, n=3, seed=7, **sampled)
    answer.finish(3)
    for index in range(3):
        seed = (seed_of(7, index) + 2**63) % 2**64 - 2**63
        alone, _ = ask(engine, source, seed=seed, **sampled)
        assert alone.finish().tokens() == answer.tokens(index)
    assert len({tuple(answer.tokens(index)) for index in range(3)}) == 3


def test_a_repeated_source_is_not_encoded_again(engine, monkeypatch):
    encoded = []
    encode = engine.model.encode
    monkeypatch.setattr(
        engine.model, "encode", lambda batch, cache: encoded.append(batch) or encode(batch, cache)
    )
    source = random_sources(1, 6, longest=40)[0]
    before = between_steps(engine, engine.counts)
    first = ask(engine, source, max_new_tokens=5, min_new_tokens=5)[0].finish()
    between = between_steps(engine, engine.counts)
    again = ask(engine, source, max_new_tokens=5, min_new_tokens=5)[0].finish()
    assert first.tokens() == again.tokens()
    assert [batch.input_ids.tolist() for batch in encoded] == [source]
    assert [answer.deltas[-1].num_cached_tokens for answer in (first, again)] == [0, len(source)]
    # A source, the token in front and all tokens but the last, which is not computed with.
    assert between.tokens - before.tokens == len(source) + 5
    after = between_steps(engine, engine.counts)
    assert after.tokens - between.tokens == 5
    assert after.prefix_hit_tokens - between.prefix_hit_tokens == len(source)


def test_equal_sources_of_one_step_are_encoded_once(engine, monkeypatch):
    """With beams and without; one of them is cancelled before it is computed."""
    encoded = []
    encode = engine.model.encode
    monkeypatch.setattr(
        engine.model, "encode", lambda batch, cache: encoded.append(batch) or encode(batch, cache)
    )
    (source,) = random_sources(1, 16, longest=40)
    with held(engine):
        asked = [ask(engine, source, max_new_tokens=5, num_beams=beams) for beams in (1, 1, 3, 1)]
        asked[0][1].cancel()
    answers = [answer.finish() for answer, _ in asked]
    assert answers[0].cancelled
    assert [batch.input_ids.tolist() for batch in encoded] == [source]
    greedy = ask(engine, source, max_new_tokens=5)[0].finish().tokens()
    assert answers[1].tokens() == answers[3].tokens() == greedy
    searched = ask(engine, source, max_new_tokens=5, num_beams=3)[0].finish().tokens()
    assert answers[2].tokens() == searched


def test_an_encoder_pass_that_fails_ends_its_requests_alone(engine, reference, monkeypatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    source, other = random_sources(2, 7)
    monkeypatch.setattr(engine.model, "encode", fail)
    with pytest.raises(ComputeFailed):
        ask(engine, source)[0].finish()
    monkeypatch.undo()
    assert engine.cache.used == 0
    asked = [(each, ask(engine, each, max_new_tokens=9)[0]) for each in (source, other)]
    for each, answer in asked:
        assert answer.finish().tokens() == reference(each, max_new_tokens=9)


@pytest.mark.parametrize(
    ("source", "parameters", "message"),
    [
        ([5] * 65, {}, "input_ids: got 65 tokens, wanted at most 64, max_batch_tokens of this"),
        ("x" * 65, {}, "text_input: got 65 tokens, wanted at most 64, max_batch_tokens"),
        ([131], {}, "input_ids: got id 131, wanted ids 0..130"),
        ([], {}, "input_ids: got no tokens"),
        ([5], {"max_tokens": 320}, r"max_tokens: got 320, wanted at most 319"),
        ([5], {"prompt_logprobs": 0}, "prompt_logprobs: got 0, wanted null for an encoder-decoder"),
        ([5], {"forced_bos_token_id": 131}, "forced_bos_token_id: got 131, wanted an id 0..130"),
        ([5], {"suppress_tokens": [7]}, "suppress_tokens: got 7, which is forced, wanted others"),
        ([5], {"num_beams": 9}, "num_beams: got 9, wanted at most 8, the sequences"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(engine, source, parameters, message):
    with pytest.raises(InvalidInput, match=message):
        ask(engine, source, **parameters)
    assert engine.cache.used == 0


def test_room_for_a_sequence_and_its_source_is_wanted(folder, reference):
    settings = GenerationSettings(max_length=320, kv_cache_mib=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusewire.engine.generation_memory.PAGE_SIZE", 1 << 12)
        with pytest.raises(ConfigurationError, match=r"wanted at least 640, .* and its source"):
            GenerationEngine(folder, settings)
