"""Log-probabilities of prompts are those of transformers, however the prompt is computed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusewire import kernels
from fusewire.engine import prompt_logprobs
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_memory import PAGE_SIZE
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.errors import ComputeFailed, InvalidInput
from fusewire.models import load_decoder
from fusewire.placement import Placement
from numpy.typing import NDArray

from tests import tolerance
from tests.engine.generating import (
    LONGEST,
    Answer,
    ShortOfPages,
    ask,
    byte_tokenizer,
    held,
    is_greedy,
    tiny_engine,
    tiny_folder,
    tiny_gpt2,
)
from tests.models.tiny_decoders import tiny_decoder
from tests.places import CPU, GPU, TORCH_DTYPES

K = 3
Entries = list[dict[int, tuple[float, int]] | None]


def prompts(count: int, seed: int, most: int = LONGEST - 30) -> list[list[int]]:
    chosen = random.Random(seed)
    return [[chosen.randrange(131) for _ in range(chosen.randint(1, most))] for _ in range(count)]


def entries(answer: Answer) -> Entries:
    """What came with the first delta, and with no other."""
    first, *others = answer.deltas
    assert all(delta.prompt_logprobs is None for delta in others)
    assert first.prompt_logprobs is not None
    return list(first.prompt_logprobs)


def distributions(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """What transformers' model expects behind each token of the prompt but the last."""
    device = next(model.parameters()).device
    with torch.no_grad():
        logits = model(torch.tensor([prompt], device=device)).logits[0, :-1]
    return logits.float().log_softmax(-1).cpu()


def are_those_of(wanted: torch.Tensor, prompt: Sequence[int], found: Entries, error: float) -> None:
    assert found[0] is None
    assert len(found) == len(prompt)
    for row, token, entry in zip(wanted, prompt[1:], found[1:], strict=True):
        assert entry is not None
        for other, (logprob, rank) in entry.items():
            assert logprob == pytest.approx(row[other].item(), abs=error)
            # Of the tokens that are clearly likelier or less likely none is on the other side.
            above = (row > row[other] + 2 * error).sum() + 1
            assert above <= rank <= (row >= row[other] - 2 * error).sum()
        assert token in entry
        ranks = sorted(rank for _, rank in entry.values())
        assert ranks[:K] == list(range(1, K + 1))
        assert len(entry) == K + (entry[token][1] > K)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[GenerationEngine]:
    """Prompts come in chunks, and the logits of a chunk in slices of five rows."""
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_logprobs, "_SLICE_BYTES", 5 * 4 * tiny_gpt2().config.vocab_size)
        engine = GenerationEngine(folder, settings)
    yield engine
    engine.close()


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("place", [CPU, *GPU], indirect=True)
def test_they_are_those_of_transformers(model_type: str, place: Placement, tmp_path: Path) -> None:
    reference = tiny_decoder(tmp_path, model_type)
    byte_tokenizer(tmp_path)
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=8)
    with GenerationEngine(tmp_path, settings, model=load_decoder(tmp_path, place)) as engine:
        asked = [
            (prompt, ask(engine, prompt, prompt_logprobs=K, max_new_tokens=3)[0])
            for prompt in prompts(12, 1, most=80)
        ]
        exact = [distributions(reference, prompt) for prompt, _ in asked]
        rounded = reference.to(place.device, TORCH_DTYPES[place.dtype])
        for (prompt, answer), wanted in zip(asked, exact, strict=True):
            error = tolerance.MODEL_FP32
            if place.dtype != "float32" and len(prompt) > 1:
                same = distributions(rounded, prompt).double().numpy()
                allowed = tolerance.allowed_error(
                    wanted.double().numpy(), same, place.dtype, LONGEST
                )
                error += float(allowed.elements.max())
            are_those_of(wanted, prompt, entries(answer.finish()), error)


def test_a_prompt_is_scored_alike_alone_and_beside_others(
    folder: Path, engine: GenerationEngine
) -> None:
    every = prompts(10, 2)
    with GenerationEngine(folder) as whole:  # a prompt is one chunk, its logits one slice
        alone = [
            entries(ask(whole, prompt, prompt_logprobs=K, max_new_tokens=1)[0].finish())
            for prompt in every
        ]
    others = [(p, ask(engine, p, max_new_tokens=25)[0]) for p in prompts(10, 3)]
    asked = [ask(engine, prompt, prompt_logprobs=K, max_new_tokens=25)[0] for prompt in every]
    for prompt, answer, wanted in zip(every, asked, alone, strict=True):
        assert entries(answer.finish()) == wanted
        assert is_greedy(prompt, answer.tokens(), 25)
    for prompt, other in others:
        assert is_greedy(prompt, other.finish().tokens(), 25)
    assert engine.cache.used == 0


def test_the_prefix_cache_serves_others_and_hides_no_token(engine: GenerationEngine) -> None:
    prompt = list(range(100))
    asked = {"max_new_tokens": 2, "prompt_logprobs": K}
    first = ask(engine, prompt, **asked)[0].finish()
    before = engine.cache.prefix_hit_tokens
    assert entries(ask(engine, prompt, **asked)[0].finish()) == entries(first)
    assert engine.cache.prefix_hit_tokens == before
    ask(engine, prompt, max_new_tokens=2)[0].finish()
    assert engine.cache.prefix_hit_tokens - before == 99 // PAGE_SIZE * PAGE_SIZE


def test_what_was_scored_before_a_pre_emption_is_kept(folder: Path) -> None:
    settings = GenerationSettings(max_batch_tokens=24, max_sequences=16)
    with ShortOfPages(folder, settings) as engine:
        with held(engine):  # the first five begin with 9 pages of 20, and would grow to 26
            asked = [
                (prompt, ask(engine, prompt, prompt_logprobs=K, max_new_tokens=60)[0])
                for prompt in prompts(30, 4, most=60)
            ]
        for prompt, answer in asked:
            wanted = distributions(tiny_gpt2(), prompt)
            are_those_of(wanted, prompt, entries(answer.finish()), tolerance.MODEL_FP32)
            assert is_greedy(prompt, answer.tokens(), 60)
        assert engine.counts().preemptions > 0
        assert engine.cache.used == 0


def test_a_prompt_alone_is_scored_without_a_new_token(engine: GenerationEngine) -> None:
    for prompt in (prompts(1, 5)[0], [7], [1, 2] * (LONGEST // 2)):
        answer = ask(engine, prompt, prompt_logprobs=K, max_tokens=0)[0].finish()
        (delta,) = answer.deltas
        assert (delta.text, delta.token, delta.num_output_tokens) == ("", None, 0)
        assert delta.finish_reason == "length"
        are_those_of(
            distributions(tiny_gpt2(), prompt), prompt, entries(answer), tolerance.MODEL_FP32
        )


def test_several_texts_have_the_prompts_once(engine: GenerationEngine) -> None:
    prompt, sampled = prompts(1, 6)[0], {"temperature": 1.5, "max_new_tokens": 6, "seed": 1}
    one = ask(engine, prompt, max_tokens=1, prompt_logprobs=K)[0].finish()
    for many in ({"n": 3}, {"n": 2, "best_of": 5}):
        answer, _ = ask(engine, prompt, prompt_logprobs=K, **many, **sampled)
        assert entries(answer.finish(many["n"])) == entries(one)


def test_none_likeliest_leaves_the_prompts_own_with_their_ranks(engine: GenerationEngine) -> None:
    prompt = prompts(1, 7)[0]
    few, many = (
        entries(ask(engine, prompt, prompt_logprobs=k, max_tokens=1)[0].finish()) for k in (0, 20)
    )
    assert few[0] is many[0] is None
    for token, own, entry in zip(prompt[1:], few[1:], many[1:], strict=True):
        assert own == {token: entry[token]}
        assert [rank for _, rank in sorted(entry.values(), key=lambda e: e[1])][:20] == [
            *range(1, 21)
        ]


def test_the_rank_of_a_drawn_token_is_known_whatever_was_asked_for(
    engine: GenerationEngine,
) -> None:
    prompt, sampled = prompts(1, 8)[0], {"temperature": 3.0, "seed": 4, "max_new_tokens": 12}
    for logprobs in (0, K):
        answer = ask(engine, prompt, logprobs=logprobs, **sampled)[0].finish()
        rows = distributions(tiny_gpt2(), [*prompt, *answer.tokens()])[len(prompt) - 1 :]
        for delta, row in zip(answer.deltas, rows, strict=True):
            assert delta.rank == (row > row[delta.token]).sum() + 1
        assert max(delta.rank for delta in answer.deltas) > K


def test_what_asks_for_nothing_or_too_much_is_refused(
    engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="max_tokens: got 0, wanted at least 1 without prompt_l"):
        engine.generate([1, 2], max_tokens=0)
    with pytest.raises(InvalidInput, match=rf"at most {LONGEST}, which leave room"):
        engine.generate([1] * (LONGEST + 1), max_tokens=0, prompt_logprobs=1)
    monkeypatch.setattr(prompt_logprobs, "MOST_ENTRIES", 300)
    with pytest.raises(InvalidInput, match="prompt_logprobs: got 4, wanted at most 2 with a prom"):
        engine.generate([1] * 100, prompt_logprobs=4)
    engine.generate([1] * 100, prompt_logprobs=2, max_tokens=1).close()


def test_logits_that_are_no_numbers_fail_their_request_alone(tmp_path: Path) -> None:
    with tiny_engine(tmp_path) as engine, pytest.MonkeyPatch.context() as patch:
        sound = engine.model.logits

        def with_a_hole(hidden: kernels.Tensor, rows: NDArray[np.int64]) -> kernels.Tensor:
            logits = engine.model.place.numpy(sound(hidden, rows)).copy()
            logits[rows == 2, 7] = np.inf
            return kernels.Tensor.from_numpy(logits)

        patch.setattr(engine.model, "logits", with_a_hole)
        hurt, _ = ask(engine, [1, 2, 3, 4, 5], prompt_logprobs=K, max_new_tokens=9)
        other, _ = ask(engine, [7, 70], max_new_tokens=20)
        with pytest.raises(ComputeFailed, match="got logits that are NaN or infinite"):
            hurt.finish()
        assert is_greedy([7, 70], other.finish().tokens(), 20)
        assert engine.cache.used == 0
