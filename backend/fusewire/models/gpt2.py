"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm in front of each part, and matrices
stored as [inputs, outputs]."""

from __future__ import annotations

from functools import partial

from fusewire.models.blueprint import Dense, Norm, Table
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import (
    DecoderBlueprint,
    DecoderLayer,
    TokenEmbeddings,
    language_head,
)

_Matrix = partial(Dense, transposed=True)


def blueprint(config: Config) -> DecoderBlueprint:
    hidden, heads = config.width("n_embd", "n_head")
    eps = config.number("layer_norm_epsilon", 1e-5)
    vocabulary = config.size("vocab_size")
    positions = config.size("n_positions")
    count = config.size("n_layer", most=4096)
    head, aliases = language_head(
        "wte", hidden, vocabulary, config.flag("tie_word_embeddings", True)
    )
    return DecoderBlueprint(
        prefix="transformer",
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        activation=config.activation("activation_function", "gelu_new"),
        norm="layer_norm",
        norm_eps=eps,
        embeddings=TokenEmbeddings(
            Table("wte.weight", vocabulary, hidden), Table("wpe.weight", positions, hidden)
        ),
        layers=tuple(_layer(config, index, hidden, heads, eps) for index in range(count)),
        final_norm=Norm("ln_f", hidden, eps),
        head=head,
        max_length=positions,
        eos_token_ids=config.token_ids("eos_token_id", 50256),
        aliases=aliases,
        # The causal mask, which old transformers versions stored.
        unread=tuple(
            f"h.{index}.attn.{name}" for index in range(count) for name in ("bias", "masked_bias")
        ),
    )


def _layer(config: Config, index: int, hidden: int, heads: int, eps: float) -> DecoderLayer:
    root = f"h.{index}"
    inner = config.size_or_null("n_inner", None) or 4 * hidden
    scale = (hidden // heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        scale /= index + 1
    return DecoderLayer(
        qkv=_Matrix((f"{root}.attn.c_attn",), hidden, 3 * hidden),
        attention_output=_Matrix((f"{root}.attn.c_proj",), hidden, hidden),
        attention_norm=Norm(f"{root}.ln_1", hidden, eps),
        intermediate=_Matrix((f"{root}.mlp.c_fc",), hidden, inner),
        output=_Matrix((f"{root}.mlp.c_proj",), inner, hidden),
        output_norm=Norm(f"{root}.ln_2", hidden, eps),
        scale=scale,
    )
