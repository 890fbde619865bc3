"""Small random decoders in Hugging Face folders, and the outputs of transformers for them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fusewire.models.registry import DECODERS
from numpy.typing import NDArray

from tests.reference import randomise

torch.set_num_threads(1)

VOCABULARY = 131
LONGEST = 96
WINDOW = 7

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 56,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Settings of each architecture that make its features matter in a small model.
_OWN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {"rotary_pct": 0.5},
    "opt": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": WINDOW},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "gemma2": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 20.0,
    },
    "gemma3_text": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 20,
    },
    "phi3": {"num_key_value_heads": 2},
}
_RENAMED = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
    },
    "opt": {"intermediate_size": "ffn_dim"},
}


def tiny_decoder(
    folder: Path | str, model_type: str, *, seed: int = 0, shard: str = "5GB", **sizes: Any
) -> transformers.PreTrainedModel:
    """Writes config.json and the weights (in files of at most `shard`) into `folder`; returns the
    transformers model: fp32, eager attention, eval mode. `sizes` are keys of config.json under
    Llama's names."""
    renamed = _RENAMED.get(model_type, {})
    values = copy.deepcopy(_SIZES | _OWN[model_type] | sizes)
    values = {renamed.get(key, key): value for key, value in values.items()}
    config = transformers.AutoConfig.for_model(model_type, **values)
    torch.manual_seed(seed)
    causal = getattr(transformers, DECODERS[model_type].causal_class)
    model = causal._from_config(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    if model_type.startswith("gemma"):  # these norms store the weight minus 1
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1 and "norm" in name:
                    parameter.sub_(1)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def random_ids(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]


def transformers_logits(
    reference: Any, sequences: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Returns [length, vocabulary] for each sequence, computed alone and without a cache."""
    device = next(reference.parameters()).device
    answers = []
    for ids in sequences:
        with torch.no_grad():
            output = reference(torch.tensor([ids], device=device), use_cache=False)
        answers.append(output.logits[0].float().cpu().numpy())
    return answers


def transformers_greedy(
    reference: Any, prompts: Sequence[Sequence[int]], tokens: int
) -> list[list[int]]:
    """Returns the tokens that transformers' `generate` adds to each prompt."""
    device = next(reference.parameters()).device
    answers = []
    for ids in prompts:
        inputs = torch.tensor([ids], device=device)
        output = reference.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        answers.append(output[0, len(ids) :].tolist())
    return answers
