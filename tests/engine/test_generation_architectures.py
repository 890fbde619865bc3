"""Every decoder architecture answers ragged prompts as transformers does, however they meet."""

from __future__ import annotations

import random
import time

import pytest
from fusewire.engine.generation_settings import GenerationSettings
from fusewire.models import DECODERS

from tests.engine.generating import END, ShortOfPages, ask, byte_tokenizer, is_greedy
from tests.models.tiny_decoders import LONGEST, tiny_decoder
from tests.places import CPU, GPU_FP32

PROMPTS = 200
NEW_TOKENS = 20


@pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)
@pytest.mark.parametrize("model_type", DECODERS)
def test_greedy_tokens_are_those_of_transformers(tmp_path, model_type, place):
    """Arriving at random, a sixth of them cancelled, and pages too few for all that run."""
    reference = tiny_decoder(tmp_path, model_type, vocab_size=END + 1, eos_token_id=END)
    byte_tokenizer(tmp_path)
    settings = GenerationSettings(max_batch_tokens=40, max_sequences=16, dtype=place.dtype)
    engine = ShortOfPages(tmp_path, settings, place.device)
    chosen = random.Random(model_type)
    asked = []
    for _ in range(PROMPTS):
        length = chosen.randint(1, LONGEST - NEW_TOKENS)
        prompt = [chosen.randrange(END) for _ in range(length)]
        answer, ticket = ask(engine, prompt, max_new_tokens=NEW_TOKENS)
        asked.append((prompt, answer))
        time.sleep(chosen.random() * 0.002)
        if chosen.random() < 1 / 6:
            ticket.cancel()
    whole = 0
    for prompt, answer in asked:
        tokens = answer.finish().tokens()
        assert not tokens or is_greedy(prompt, tokens, len(tokens), reference)
        if not answer.cancelled:
            assert len(tokens) == NEW_TOKENS or tokens[-1] == END
            whole += 1
    assert whole >= PROMPTS // 2
    engine.close()
    assert engine.cache.used == 0
