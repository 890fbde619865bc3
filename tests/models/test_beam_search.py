"""Beam search over a decoder's cache whose pages beams share equals that of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.models import load_decoder
from fusewire.placement import Placement

from tests.models.beam_driver import BeamDriver
from tests.models.tiny_decoders import VOCABULARY, random_ids, tiny_decoder
from tests.places import CPU, GPU_FP32
from tests.tolerance import PIPELINE_SCORE

pytestmark = pytest.mark.parametrize("place", [CPU, GPU_FP32], indirect=True)

PROMPTS = random_ids((1, 9, 16, 5, 12))
ENDS = [2, 27, 100, 113]  # some tokens that these models generate often

SETTINGS = [
    {"beams": 4, "max_tokens": 14},
    {"beams": 2, "max_tokens": 20, "early_stopping": True, "length_penalty": 0.0},
    {"beams": 5, "max_tokens": 11, "early_stopping": "never", "length_penalty": 1.6},
    {"beams": 7, "max_tokens": 9, "length_penalty": 0.5},
]


def of_transformers(reference: Any, prompt: list[int], bias: dict, settings: dict) -> Any:
    with torch.no_grad():
        return reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=settings["beams"],
            num_return_sequences=settings["beams"],
            max_new_tokens=settings["max_tokens"],
            length_penalty=settings.get("length_penalty", 1.0),
            early_stopping=settings.get("early_stopping", False),
            sequence_bias=[[[token], value] for token, value in bias.items()] or None,
            eos_token_id=ENDS,
            pad_token_id=VOCABULARY,  # not a token of the model
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )


@pytest.mark.parametrize("bias", [{}, {2: 4.0, 38: -2.0}], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_hypotheses_are_those_of_transformers(
    model_type: str, settings: dict, bias: dict, place: Placement, tmp_path: Path
):
    reference = tiny_decoder(tmp_path, model_type)
    model = load_decoder(tmp_path, place)
    whole = {"eos_token_ids": ENDS, **settings}
    wanted = [of_transformers(reference, prompt, bias, settings) for prompt in PROMPTS]
    ended = 0
    for page_size in (4, 8):
        driver = BeamDriver(model, page_size, 400, bias)
        found = driver.run(PROMPTS, **whole)
        assert sorted(driver.free) == list(range(400))  # every page was returned
        assert driver.copies > 0
        for prompt, hypotheses, theirs in zip(PROMPTS, found, wanted, strict=True):
            sequences = theirs.sequences[:, len(prompt) :].tolist()
            tokens = [[t for t in sequence if t < VOCABULARY] for sequence in sequences]
            assert [h.tokens.tolist() for h in hypotheses] == tokens
            scores = [h.score for h in hypotheses]
            np.testing.assert_allclose(scores, theirs.sequences_scores, 0, PIPELINE_SCORE)
            ended += sum(len(t) < settings["max_tokens"] for t in tokens)
    assert ended > 0 or (model_type == "llama" and not bias)  # which generates other tokens first
