"""Models of published sizes, with random weights, are as close to transformers in fp64 as
transformers is in their precision: complete on a GPU, with fewer layers on a CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusewire.models import load_decoder, load_model
from fusewire.placement import Placement

from tests.models.oracle import allowed_errors, excess, fusewire_answers, random_sequences
from tests.models.paged_texts import logits_in_pieces
from tests.models.tiny_decoders import tiny_decoder, transformers_logits
from tests.places import CPU, GPU, GPU_HALVES, TORCH_DTYPES
from tests.reference import tiny_checkpoint
from tests.tolerance import allowed_error

BASE = {"hidden_size": 768, "num_attention_heads": 12}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {  # BERT-base
        **BASE,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_length": 512,
    },
    "modernbert": {  # ModernBERT-base
        **BASE,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "vocab_size": 50368,
        "max_length": 8192,
        "local_attention": 128,
    },
}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {  # GPT-2 124M
        **BASE,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "vocab_size": 50257,
        "max_position_embeddings": 1024,
    },
    "llama": {  # Llama 3.2 1B; of its 131072 positions only those that the caches here have
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}
# A decoder's head is smaller on a CPU too: one with Llama's vocabulary takes a GiB in fp32.
ON_A_CPU = {"num_hidden_layers": 3}
DECODER_ON_A_CPU = {"num_hidden_layers": 2, "vocab_size": 8003}

ENCODER_LENGTHS = (1, 512, 64, 129)
DECODER_LENGTHS = (1, 33, 257)


def check_encoder(folder: Path, architecture: str, place: Placement, **sizes: Any) -> None:
    with torch.device(place.device):
        reference = tiny_checkpoint(folder, architecture, "hidden", **sizes)
    model = load_model(folder, "hidden", place, pooler=True)
    sequences = random_sequences(model, ENCODER_LENGTHS)
    allowed = allowed_errors(reference.double(), model, sequences)
    assert not excess(fusewire_answers(model, sequences, "hidden"), allowed)


def check_decoder(folder: Path, model_type: str, place: Placement, **sizes: Any) -> None:
    with torch.device(place.device):
        reference = tiny_decoder(folder, model_type, **sizes)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, sizes["vocab_size"], n).tolist() for n in DECODER_LENGTHS]
    same = copy.deepcopy(reference).to(TORCH_DTYPES[place.dtype])
    rounded = np.concatenate(transformers_logits(same, sequences))
    truth = np.concatenate(transformers_logits(reference.double(), sequences)).astype(np.float64)
    del reference, same
    ours = np.concatenate(logits_in_pieces(load_decoder(folder, place), sequences, most=100))
    terms = max(sizes["intermediate_size"], *DECODER_LENGTHS)
    assert not allowed_error(truth, rounded, place.dtype, terms).excess(ours)


@pytest.mark.parametrize("place", GPU, indirect=True)
@pytest.mark.parametrize("architecture", ENCODERS)
def test_a_whole_encoder_is_as_right_as_transformers(tmp_path, architecture, place: Placement):
    check_encoder(tmp_path, architecture, place, **ENCODERS[architecture])


@pytest.mark.parametrize("place", GPU, indirect=True)
def test_gpt2_is_as_right_as_transformers(tmp_path, place: Placement):
    check_decoder(tmp_path, "gpt2", place, **DECODERS["gpt2"])


@pytest.mark.parametrize("place", GPU_HALVES[1:], indirect=True)  # bfloat16, the published dtype
def test_llama_of_a_billion_weights_is_as_right_as_transformers(tmp_path, place: Placement):
    check_decoder(tmp_path, "llama", place, **DECODERS["llama"])


@pytest.mark.sweep
@pytest.mark.parametrize("place", [CPU], indirect=True)
@pytest.mark.parametrize("architecture", ENCODERS)
def test_some_layers_of_an_encoder_on_a_cpu(tmp_path, architecture, place: Placement):
    check_encoder(tmp_path, architecture, place, **ENCODERS[architecture] | ON_A_CPU)


@pytest.mark.sweep
@pytest.mark.parametrize("place", [CPU], indirect=True)
@pytest.mark.parametrize("model_type", DECODERS)
def test_some_layers_of_a_decoder_on_a_cpu(tmp_path, model_type, place: Placement):
    check_decoder(tmp_path, model_type, place, **DECODERS[model_type] | DECODER_ON_A_CPU)
