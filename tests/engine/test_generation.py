"""Many requests at once are each answered as if alone, and leave nothing behind."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator

import pytest
from fusewire.engine.continuation import Continuation
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_memory import PAGE_SIZE
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.engine.seeds import seed_of
from fusewire.errors import ComputeFailed, ConfigurationError, FusewireError, Unavailable
from fusewire.generation.request import GenerationRequest

from tests.engine.generating import (
    ANSWER_TIMEOUT_S,
    END,
    LONGEST,
    Answer,
    Cancelling,
    ShortOfPages,
    allocated_bytes,
    ask,
    held,
    is_greedy,
    pass_steps,
    tiny_engine,
    tiny_folder,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[GenerationEngine]:
    engine = tiny_engine(tmp_path_factory.mktemp("gpt2"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def short_of_pages(tmp_path_factory) -> Iterator[GenerationEngine]:
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=16)
    engine = ShortOfPages(tiny_folder(tmp_path_factory.mktemp("gpt2")), settings)
    yield engine
    engine.close()


def prompts(count: int, seed: int) -> list[tuple[int, ...]]:
    chosen = random.Random(seed)
    return [
        tuple(chosen.randrange(256) for _ in range(chosen.randint(1, LONGEST - 30)))
        for _ in range(count)
    ]


def test_greedy_tokens_are_those_of_transformers(engine):
    asked = [(prompt, ask(engine, prompt, max_new_tokens=20)[0]) for prompt in prompts(200, 1)]
    for prompt, answer in asked:
        assert is_greedy(prompt, answer.finish().tokens(), 20)


def test_requests_come_and_go_at_any_time(engine):
    chosen, cancelling = random.Random(2), Cancelling(engine)
    kept, cancelled = [], []
    alone, _ = cancelling.ask(10, [1, 2, 3], max_new_tokens=25, ignore_eos=True)
    assert len(alone.finish().tokens()) == 10
    assert alone.cancelled
    for prompt in prompts(150, 2):
        length = chosen.randint(1, 25)
        if chosen.random() < 0.4:
            steps = chosen.randrange(length)  # too few to end by its length
            answer, _ = cancelling.ask(steps, prompt, max_new_tokens=length)
            cancelled.append((prompt, steps, answer))
        else:
            kept.append((prompt, length, ask(engine, prompt, max_new_tokens=length)[0]))
        pass_steps(engine, chosen.randrange(3))
    for prompt, length, answer in kept:
        assert is_greedy(prompt, answer.finish().tokens(), length)
    for prompt, steps, answer in cancelled:
        tokens = answer.finish().tokens()
        assert len(tokens) <= steps
        assert answer.cancelled or tokens[-1] == END
        assert not tokens or is_greedy(prompt, tokens, len(tokens))
    assert engine.cache.used == 0


def test_running_out_of_pages_costs_time_and_no_answer(short_of_pages):
    before = short_of_pages.counts().preemptions
    short = [prompt[:6] for prompt in prompts(40, 3)]  # each grows to seven pages
    assert short_of_pages.cache.pages == 20  # ten of them begin with one each
    with held(short_of_pages):
        asked = [(p, ask(short_of_pages, p, max_new_tokens=100)[0]) for p in short]
    for prompt, answer in asked:
        assert is_greedy(prompt, answer.finish().tokens(), 100)
    assert short_of_pages.counts().preemptions > before
    assert short_of_pages.cache.used == 0


def test_a_thousand_cancelled_requests_leave_nothing_behind(short_of_pages):
    chosen, before = random.Random(4), 0
    for prompt in prompts(1000, 4):
        answer, ticket = ask(short_of_pages, prompt, max_new_tokens=25)
        for _ in range(chosen.randrange(3)):
            if answer.next().finish_reason:
                break
        ticket.cancel()
        answer.finish()
        before = before or allocated_bytes(short_of_pages)
    assert short_of_pages.cache.used == 0
    assert allocated_bytes(short_of_pages) == before


def test_every_continuation_is_what_its_seed_alone_would_be(engine):
    prompt = prompts(1, 5)[0]
    sampled = {"max_new_tokens": 12, "temperature": 1.5, "top_k": 50}
    answer, _ = ask(engine, prompt, n=3, seed=7, **sampled)
    answer.finish(3)
    for index in range(3):
        seed = (seed_of(7, index) + 2**63) % 2**64 - 2**63  # a parameter has a sign
        alone, _ = ask(engine, prompt, seed=seed, **sampled)
        assert alone.finish().tokens() == answer.tokens(index)
    assert len({tuple(answer.tokens(index)) for index in range(3)}) == 3


def test_a_seed_decides_whatever_else_is_in_the_batch(engine):
    prompt = prompts(1, 6)[0]
    sampled = {"max_new_tokens": 15, "temperature": 1.0, "seed": 3}
    alone = ask(engine, prompt, **sampled)[0].finish().tokens()
    asked = [ask(engine, p, max_new_tokens=15, temperature=2.0)[0] for p in prompts(20, 6)]
    among, _ = ask(engine, prompt, **sampled)
    assert among.finish().tokens() == alone
    for answer in asked:
        answer.finish()


def test_the_best_of_many_are_the_likeliest_a_token(engine):
    prompt, sampled = prompts(1, 7)[0], {"temperature": 1.5, "max_new_tokens": 8, "seed": 1}
    every = ask(engine, prompt, n=6, **sampled)[0].finish(6)
    best = ask(engine, prompt, n=2, best_of=6, **sampled)[0].finish(2)

    def likelihood(answer: Answer, index: int) -> float:
        last = [delta for delta in answer.deltas if delta.index == index][-1]
        return last.cumulative_logprob / last.num_output_tokens

    ranked = sorted((likelihood(every, index) for index in range(6)), reverse=True)
    assert [likelihood(best, index) for index in range(2)] == pytest.approx(ranked[:2], abs=1e-4)


def test_the_text_ends_before_a_stop_string(engine):
    prompt = prompts(1, 8)[0]
    whole = ask(engine, prompt, max_new_tokens=25)[0].finish().text()
    stop = whole[9:12]
    answer, _ = ask(engine, prompt, max_new_tokens=25, stop=[stop])
    assert answer.finish().text() == whole[: whole.index(stop)]
    assert answer.finish_reason() == "stop"


def test_a_stop_token_ends_the_text_and_is_no_part_of_it(engine):
    prompt = prompts(1, 9)[0]
    tokens = ask(engine, prompt, max_new_tokens=20)[0].finish().tokens()
    answer, _ = ask(engine, prompt, max_new_tokens=20, stop_token_ids=[tokens[5]])
    answer.finish()
    first = tokens.index(tokens[5])
    assert answer.tokens() == tokens[: first + 1]
    assert answer.text() == engine.tokenizer.decode(tokens[:first])


def test_a_prompt_that_begins_like_an_earlier_one_is_not_computed_again(engine):
    prompt = (*range(100), 1)
    ask(engine, prompt, max_new_tokens=2)[0].finish()
    before = engine.cache.prefix_hit_tokens
    again = (*range(100), 2)
    answer = ask(engine, again, max_new_tokens=10)[0].finish()
    assert is_greedy(again, answer.tokens(), 10)
    found = 100 // PAGE_SIZE * PAGE_SIZE
    assert engine.cache.prefix_hit_tokens - before == found
    assert {delta.num_cached_tokens for delta in answer.deltas} == {found}
    new, _ = ask(engine, [7, *range(100)], max_new_tokens=2)
    assert new.finish().deltas[-1].num_cached_tokens == 0


def test_logprobs_are_those_of_the_model(engine):
    import torch

    from tests.engine.generating import tiny_gpt2

    prompt = prompts(1, 10)[0]
    answer = ask(engine, prompt, max_new_tokens=6, logprobs=3)[0].finish()
    tokens = answer.tokens()
    with torch.no_grad():
        logits = tiny_gpt2()(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1)
    for delta, row in zip(answer.deltas, wanted, strict=True):
        assert delta.logprob == pytest.approx(row[delta.token].item(), abs=1e-4)
        values, ids = row.topk(3)
        assert [token for token, _ in delta.top_logprobs] == ids.tolist()
        assert [p for _, p in delta.top_logprobs] == pytest.approx(values.tolist(), abs=1e-4)


def test_a_fault_in_one_text_fails_that_request_alone(tmp_path, monkeypatch):
    with tiny_engine(tmp_path) as engine:
        accept, accepted = Continuation.accept, []

        def but_one(self, *drawn):
            accepted.append(self)
            if len(accepted) == 10:
                raise ValueError("no text")
            return accept(self, *drawn)

        monkeypatch.setattr(Continuation, "accept", but_one)
        answers = [ask(engine, [n, n], max_new_tokens=40, ignore_eos=True)[0] for n in range(4)]
        ended = 0
        for answer in answers:
            try:
                answer.finish()
            except ComputeFailed:
                ended += 1
            else:
                assert len(answer.tokens()) == 40
        assert ended == 1
        assert engine.cache.used == 0


def test_forks_that_nobody_owns_leave_with_the_step_that_failed(tmp_path, monkeypatch):
    with tiny_engine(tmp_path) as engine:
        scheduler = engine._loop.scheduler
        done = scheduler.done

        def breaks(step):
            done(step)
            raise MemoryError

        monkeypatch.setattr(scheduler, "done", breaks)
        with pytest.raises(ComputeFailed, match="memory"):
            ask(engine, [1, 2], n=4, temperature=1.0, max_new_tokens=5)[0].finish()
        monkeypatch.setattr(scheduler, "done", done)
        ask(engine, [3], max_new_tokens=1)[0].finish()
        assert engine.cache.used == scheduler.running == 0


def test_a_cache_too_small_for_one_sequence_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="max_length: got 129, wanted at most 128"):
        tiny_engine(tmp_path, max_length=129)


def test_more_memory_for_the_cache_than_there_is_is_refused_in_words(tmp_path):
    settings = GenerationSettings(kv_cache_mib=99_999_999)
    words = r"^kv_cache_mib: got 99999\d+, .*cpu is out of memory. Got .*; lower it, or "
    with pytest.raises(ConfigurationError, match=words):
        GenerationEngine(tiny_folder(tmp_path), settings=settings)
    with pytest.raises(ConfigurationError, match="kv_cache_mib: got 9223372036854775808, wanted"):
        GenerationSettings(kv_cache_mib=1 << 63)


def test_a_step_that_fails_fails_its_requests_and_the_next_goes_on(tmp_path, monkeypatch):
    with tiny_engine(tmp_path) as engine:
        step = engine.model.step
        monkeypatch.setattr(engine.model, "step", lambda *_: 1 / 0)
        with pytest.raises(ComputeFailed, match="compute: got ZeroDivisionError"):
            ask(engine, [1, 2], max_new_tokens=3)[0].finish()
        monkeypatch.setattr(engine.model, "step", step)
        assert ask(engine, [1, 2], max_new_tokens=3)[0].finish().finish_reason() == "length"
        assert engine.cache.used == 0


@pytest.mark.parametrize("raised_first", [True, False])
def test_a_callback_that_raises_on_its_error_ends_no_other(tmp_path, raised_first):
    """On its first text, and then on the error for that; or cancelled."""
    with tiny_engine(tmp_path) as engine:
        told: queue.SimpleQueue[object] = queue.SimpleQueue()

        def breaks(event: object) -> None:
            told.put(event)
            if raised_first or isinstance(event, FusewireError):
                raise ZeroDivisionError

        asked = engine.parameters(max_new_tokens=60, ignore_eos=True)
        other = ask(engine, [3, 4], max_new_tokens=100, ignore_eos=True)[0]
        other.next()
        ticket = engine.submit(GenerationRequest([1, 2], asked), None, breaks)
        told.get(timeout=ANSWER_TIMEOUT_S)
        ticket.cancel()
        assert len(other.finish().tokens()) == 100
        assert ask(engine, [1, 2], max_new_tokens=3)[0].finish().finish_reason() == "length"
        assert engine.cache.used == 0


def test_a_loop_that_breaks_leaves_nobody_waiting(tmp_path, monkeypatch):
    engine = tiny_engine(tmp_path)
    monkeypatch.setattr(engine._loop, "step", lambda now: 1 / 0)
    with pytest.raises(ComputeFailed):
        ask(engine, [1, 2], max_new_tokens=3)[0].finish()
    with pytest.raises(Unavailable, match="while it stops"):
        ask(engine, [1, 2])
    engine.close()
