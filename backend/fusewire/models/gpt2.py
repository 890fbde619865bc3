"""GPT-2 (Radford et al., 2019): learned positions, pre-norm LayerNorm, and matrices stored as
[inputs, outputs]."""

from __future__ import annotations

from functools import partial

from fusewire.models.blueprint import (
    Attention,
    Block,
    Blueprint,
    Embeddings,
    FeedForward,
    Layer,
    Stack,
)
from fusewire.models.config import Config
from fusewire.models.language_head import language_model
from fusewire.models.stored_weights import Dense, Norm, Table

_Matrix = partial(Dense, transposed=True)


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width("n_embd", "n_head")
    eps = config.number("layer_norm_epsilon", 1e-5)
    vocabulary = config.size("vocab_size")
    positions = config.size("n_positions")
    count = config.size("n_layer", most=4096)
    return language_model(
        config,
        "transformer",
        Stack(
            hidden_size=hidden,
            max_length=positions,
            embeddings=Embeddings(
                Table("wte.weight", vocabulary, hidden), Table("wpe.weight", positions, hidden)
            ),
            layers=tuple(_layer(config, index, hidden, heads, eps) for index in range(count)),
            final_norm=Norm("ln_f", hidden, eps),
        ),
        eos=50256,
        tied=True,
        # The causal mask, stored by old transformers versions.
        unread=tuple(
            f"h.{index}.attn.{name}" for index in range(count) for name in ("bias", "masked_bias")
        ),
    )


def _layer(config: Config, index: int, hidden: int, heads: int, eps: float) -> Layer:
    root = f"h.{index}"
    inner = config.size_or_null("n_inner", None) or 4 * hidden
    scale = (hidden // heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    attention = Attention(
        qkv=_Matrix((f"{root}.attn.c_attn",), hidden, 3 * hidden),
        output=_Matrix((f"{root}.attn.c_proj",), hidden, hidden),
        heads=heads,
        right=0,
        scale=scale,
    )
    feed_forward = FeedForward(
        intermediate=_Matrix((f"{root}.mlp.c_fc",), hidden, inner),
        output=_Matrix((f"{root}.mlp.c_proj",), inner, hidden),
        activation=config.activation("activation_function", "gelu_new"),
    )
    first, second = (Norm(f"{root}.ln_{part}", hidden, eps) for part in (1, 2))
    return Layer((Block(attention, first), Block(feed_forward, second)))
