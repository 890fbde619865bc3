"""Small random encoder-decoder models in Hugging Face folders, whole or only their encoders, and
the outputs of transformers for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fusewire.models.registry import SEQ2SEQ as ROWS
from fusewire.models.registry import SEQ2SEQ_ENCODERS
from numpy.typing import NDArray

from tests.reference import randomise

VOCABULARY = 131
LONGEST = 320  # for models with a maximum position

_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "num_heads": 4,
    "d_kv": 20,  # all heads together are wider than the hidden state
    "num_layers": 3,
    "num_decoder_layers": 2,
    "d_ff": 56,
    "decoder_start_token_id": 0,
}
_BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
# For each architecture, the prefix of its transformers classes, and settings that make its features
# matter.
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("Bart", _BART),
    "mbart": ("MBart", _BART | {"scale_embedding": True}),
    "marian": (
        "Marian",
        _BART
        | {
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 77,
        },
    ),
    "plbart": ("PLBart", _BART | {"decoder_start_token_id": None}),
    "m2m_100": ("M2M100", _BART),
    "pegasus": ("Pegasus", _BART | {"scale_embedding": True}),
    "blenderbot": ("Blenderbot", _BART),
    "blenderbot-small": ("BlenderbotSmall", _BART | {"scale_embedding": True}),
    "t5": ("T5", _T5),
    "mt5": ("MT5", _T5),
    "umt5": ("UMT5", _T5),
}


def tiny_seq2seq(
    folder: Path | str, model_type: str, ending: str = "", *, seed: int = 0, **sizes: Any
) -> Any:
    """Writes config.json and the weights into `folder`; returns the transformers model: fp32, eager
    attention, eval mode. `ending`: that of the class name, if not the class that generates. `sizes`
    are keys of config.json."""
    prefix, own = SEQ2SEQ[model_type]
    config = transformers.AutoConfig.for_model(model_type, **own | sizes)
    name = prefix + ending if ending else ROWS[model_type].causal_class
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager")
    model = model.float().eval()
    randomise(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("SelfAttention.q.weight", "EncDecAttention.q.weight")):
                parameter *= config.d_kv**-0.5  # T5's initialisation, as its scores are not scaled
        for module in model.modules():
            if hasattr(module, "create_weight"):  # sinusoidal positions
                module.weight.copy_(module.create_weight())
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(seed))
    if model.can_generate():
        model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return model


def tiny_encoder(folder: Path | str, model_type: str, ending: str = "", **sizes: Any) -> Any:
    """As `tiny_seq2seq`, with the smallest class that has the encoder; returns transformers'
    encoder."""
    if not ending and SEQ2SEQ_ENCODERS[model_type].classes:
        ending = "EncoderModel"
    return tiny_seq2seq(folder, model_type, ending, **sizes).get_encoder()


def random_texts(words: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, words, length).tolist() for length in lengths]


def teacher_forced_logits(
    reference: Any, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[NDArray[np.float32]]:
    """Returns [length, vocabulary] for each target, computed alone and without a cache."""
    device = next(reference.parameters()).device
    answers = []
    for source, target in zip(sources, targets, strict=True):
        with torch.no_grad():
            output = reference(
                input_ids=torch.tensor([source], device=device),
                decoder_input_ids=torch.tensor([target], device=device),
                use_cache=False,
            )
        answers.append(output.logits[0].float().cpu().numpy())
    return answers
