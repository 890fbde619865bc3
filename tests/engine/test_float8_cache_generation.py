"""Engines on a GPU whose KV cache is in float8: each token is the likeliest of transformers with
keys and values rounded so, as far as that is decided in 16 bits, whatever else runs; what a beam
search found is as likely as it says; and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.engine.generation import GenerationEngine
from fusewire.engine.generation_settings import GenerationSettings

from tests.engine.generating import (
    END,
    LONGEST,
    ShortOfPages,
    ask,
    byte_tokenizer,
    held,
    pass_steps,
)
from tests.engine.test_seq2seq_generation import random_sources, seq2seq_folder
from tests.models.float8_reference import float8_logits, float8_teacher_forced_logits
from tests.models.tiny_decoders import tiny_decoder
from tests.places import TORCH_DTYPES
from tests.tolerance import Allowed, turned_codes

pytestmark = pytest.mark.gpu
# Heads of 64; a prompt's chunks are computed by other kernels than single tokens.
SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "max_position_embeddings": LONGEST}


def settings(dtype: str, **changed: object) -> GenerationSettings:
    return GenerationSettings(dtype=dtype, kv_cache_dtype="fp8", max_sequences=16, **changed)


class Reference:
    """transformers' model in fp32 and in 16 bits."""

    def __init__(self, model: Any, dtype: str) -> None:
        self._exact = model.to("cuda")
        self._rounded = deepcopy(self._exact).to(TORCH_DTYPES[dtype])
        self._dtype = dtype

    def logits(self, logits: Callable[[Any], list[np.ndarray]]) -> Allowed:
        """Those of one text, by the last of what `logits` gives, and what they may be off."""
        truth, rounded = (logits(model)[-1] for model in (self._exact, self._rounded))
        return turned_codes(truth.astype(np.float64), rounded, self._dtype, LONGEST)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chunks_prefixes_and_preemption_change_no_token(tmp_path, model_type, dtype):
    model = tiny_decoder(tmp_path, model_type, vocab_size=END + 1, **SIZES)
    reference = Reference(model, dtype)
    byte_tokenizer(tmp_path)
    chosen = random.Random(model_type)
    begin = tuple(chosen.randrange(END) for _ in range(40))
    prompts = [
        begin * (i % 2) + tuple(chosen.randrange(END) for _ in range(chosen.randint(1, 40)))
        for i in range(30)
    ]
    engine = ShortOfPages(tmp_path, settings(dtype, max_batch_tokens=24), "cuda")
    with held(engine):
        asked = [ask(engine, p, max_new_tokens=30, ignore_eos=True)[0] for p in prompts[:16]]
    for prompt in prompts[16:]:
        asked.append(ask(engine, prompt, max_new_tokens=30, ignore_eos=True)[0])
        pass_steps(engine, chosen.randrange(6))
    for prompt, answer in zip(prompts, asked, strict=True):
        tokens = answer.finish().tokens()
        assert len(tokens) == 30
        text = [*prompt, *tokens]
        known = reference.logits(lambda model, text=text: float8_logits(model, [text]))
        rows = known.rows(slice(len(prompt) - 1, -1))
        chosen_ones = np.take_along_axis(rows.truth + rows.elements, np.array(tokens)[:, None], 1)
        assert (chosen_ones >= (rows.truth - rows.elements).max(1, keepdims=True)).all()
    counts = engine.counts()
    assert counts.prefix_hit_tokens > 0
    assert counts.preemptions > 0
    assert counts.page_bytes == 16 * engine.model.bytes_per_token
    assert engine.cache.used == 0
    engine.close()


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("bart", "float16"), ("marian", "float16"), ("t5", "bfloat16")]
)
def test_what_beams_over_sources_find_is_as_likely_as_they_say(tmp_path, model_type, dtype):
    model = seq2seq_folder(tmp_path, model_type)
    reference, first = Reference(model, dtype), model.config.decoder_start_token_id
    sources = random_sources(24, 1, longest=40)
    kinds: list[dict[str, Any]] = [{}, {"num_beams": 4, "n": 2}, {"num_beams": 3}]
    with GenerationEngine(tmp_path, settings(dtype, max_length=LONGEST), "cuda") as engine:
        with held(engine):
            asked = [
                (source, kind, ask(engine, source, max_new_tokens=20, ignore_eos=True, **kind)[0])
                for source, kind in zip(sources, kinds * 8, strict=True)
            ]
        for source, kind, answer in asked:
            count = kind.get("n", 1)
            answer.finish(count)
            for index in range(count):
                tokens = answer.tokens(index)
                assert len(tokens) == 20
                known = reference.logits(
                    lambda model, source=source, tokens=tokens: float8_teacher_forced_logits(
                        model, [source], [[first, *tokens[:-1]]]
                    )
                )
                scores = torch.from_numpy(known.truth).log_softmax(-1).numpy()
                likely = np.take_along_axis(scores, np.array(tokens)[:, None], 1)
                if engine.model.forced_eos_token_id:  # the last one is certain then
                    likely = likely[:-1]
                told = [d for d in answer.deltas if d.index == index][-1].cumulative_logprob
                assert abs(told - likely.sum()) <= 2 * known.elements.max(1).sum()
        assert engine.cache.used == engine.cache.live_tokens == 0
