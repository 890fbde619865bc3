"""Every decoder architecture answers ragged prompts as transformers does, however they meet."""

from __future__ import annotations

import random

import pytest
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.models import DECODERS

from tests.engine.generating import (
    END,
    Cancelling,
    ShortOfPages,
    ask,
    byte_tokenizer,
    held,
    is_greedy,
    pass_steps,
)
from tests.models.tiny_decoders import LONGEST, tiny_decoder
from tests.places import CPU, GPU_FP32

PROMPTS = 180
NEW_TOKENS = 20


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", DECODERS)
def test_greedy_tokens_are_those_of_transformers(tmp_path, model_type, place):
    """Some at once with pages too few for all that run, the others at any time; a sixth of them
    cancelled."""
    reference = tiny_decoder(tmp_path, model_type, vocab_size=END + 1, eos_token_id=END)
    byte_tokenizer(tmp_path)
    settings = GenerationSettings(max_batch_tokens=40, max_sequences=16, dtype=place.dtype)
    engine = ShortOfPages(tmp_path, settings, place.device)
    chosen, cancelling = random.Random(model_type), Cancelling(engine)
    whole, cancelled = [], []

    def submit(prompt: list[int], most: int, steps: int | None = None) -> None:
        """`steps`: then it is cancelled."""
        if steps is None:
            whole.append((prompt, most, ask(engine, prompt, max_new_tokens=most)[0]))
        else:
            answer, _ = cancelling.ask(steps, prompt, max_new_tokens=most)
            cancelled.append((prompt, answer))

    with held(engine):
        submit([chosen.randrange(END)], NEW_TOKENS, steps=10)
        # Seven begin with a page each and are to grow to three, of fifteen.
        assert engine.cache.pages == 15
        for _ in range(20):
            submit([chosen.randrange(END) for _ in range(8)], 2 * NEW_TOKENS)
    for _ in range(PROMPTS):
        length = chosen.randint(1, LONGEST - NEW_TOKENS)
        prompt = [chosen.randrange(END) for _ in range(length)]
        cancel = chosen.random() < 1 / 6
        submit(prompt, NEW_TOKENS, chosen.randrange(NEW_TOKENS) if cancel else None)
        pass_steps(engine, chosen.randrange(3))
    for prompt, most, answer in whole:
        assert is_greedy(prompt, answer.finish().tokens(), most, reference)
    for prompt, answer in cancelled:
        tokens = answer.finish().tokens()
        assert answer.cancelled or tokens[-1] == END
        assert not tokens or is_greedy(prompt, tokens, len(tokens), reference)
    assert len(cancelled[0][1].tokens()) == 10
    assert engine.counts().preemptions > 0
    engine.close()
    assert engine.cache.used == 0
