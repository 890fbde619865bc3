"""Small random encoder-decoder models in Hugging Face folders: their encoders alone, or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.reference import randomise

VOCABULARY = 131

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "num_heads": 4,
    "d_kv": 20,  # heads are wider together than the hidden state
    "num_layers": 3,
    "d_ff": 56,
}
# Of each architecture: its transformers classes, and what makes its peculiarities matter.
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", {}),
    "mt5": ("MT5", {}),
    "umt5": ("UMT5", {}),
}


def tiny_seq2seq(
    folder: Path | str,
    model_type: str,
    ending: str = "EncoderModel",
    *,
    seed: int = 0,
    **sizes: Any,
) -> Any:
    """Writes config.json and the weights of the class with that ending into `folder`; transformers'
    encoder of it: fp32, eager attention, eval mode. `sizes` are keys of config.json under T5's
    names."""
    prefix, own = SEQ2SEQ[model_type]
    config = transformers.AutoConfig.for_model(model_type, **_SIZES | own | sizes)
    whole = getattr(transformers, prefix + ending)._from_config(config, attn_implementation="eager")
    whole = whole.float().eval()
    randomise(whole, seed)
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if name.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")):
                parameter *= config.d_kv**-0.5  # as they are initialised: scores have no scale
    whole.save_pretrained(folder)
    return (
        getattr(transformers, f"{prefix}EncoderModel")
        .from_pretrained(folder, attn_implementation="eager")
        .eval()
    )
