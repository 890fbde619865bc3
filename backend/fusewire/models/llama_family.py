"""What Llama and its relatives share: names, RMSNorm in front of each part, a gated feed-forward.

Grouped heads (Ainslie et al., 2023), SwiGLU (Shazeer, 2020), RMSNorm (Zhang and Sennrich, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.models.blueprint import Dense, Norm, Table
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import (
    DecoderBlueprint,
    DecoderLayer,
    TokenEmbeddings,
    language_head,
)
from fusewire.models.rope import Rope
from fusewire.models.rope_config import LONGEST

WORD = "embed_tokens"


@dataclass(frozen=True)
class Sizes:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


def sizes(config: Config, head_dim: int | None = None, kv_heads: int | None = None) -> Sizes:
    """`head_dim` and `kv_heads` are the architecture's defaults; without them a head is
    hidden_size / num_attention_heads wide, and every head has its own keys."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if head_dim is None and not config.given("head_dim"):
        head_dim = config.width()[0] // heads
    grouped = config.size_or_null("num_key_value_heads", kv_heads or heads) or heads
    if heads % grouped:
        raise config.fault("num_key_value_heads", grouped, f"a divisor of {heads} heads")
    return Sizes(
        hidden,
        config.size("intermediate_size"),
        heads,
        grouped,
        config.size_or_null("head_dim", head_dim) or head_dim or 0,
    )


def family_layer(
    index: int,
    size: Sizes,
    eps: float,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    **more: Any,  # of DecoderLayer: rope, window, norms
) -> DecoderLayer:
    root = f"layers.{index}"
    attention, mlp = f"{root}.self_attn", f"{root}.mlp"
    parts: dict[str, Any] = {
        "qkv": Dense(
            tuple(f"{attention}.{name}_proj" for name in "qkv"),
            size.hidden,
            size.q_width + 2 * size.kv_width,
            qkv_bias,
            rows=(size.q_width, size.kv_width, size.kv_width),
        ),
        "attention_output": Dense((f"{attention}.o_proj",), size.q_width, size.hidden, output_bias),
        "attention_norm": rms_norm(f"{root}.input_layernorm", size.hidden, eps),
        "intermediate": Dense(
            (f"{mlp}.gate_proj", f"{mlp}.up_proj"), size.hidden, 2 * size.intermediate, mlp_bias
        ),
        "output": Dense((f"{mlp}.down_proj",), size.intermediate, size.hidden, mlp_bias),
        "output_norm": rms_norm(f"{root}.post_attention_layernorm", size.hidden, eps),
    }
    return DecoderLayer(**parts | more)


def head_norms(index: int, size: Sizes, eps: float, one_plus: bool = False) -> dict[str, Any]:
    """RMSNorm of each query and key head (Qwen 3, Gemma 3)."""
    root = f"layers.{index}.self_attn"
    return {
        name: rms_norm(f"{root}.{name}", size.head_dim, eps, one_plus)
        for name in ("q_norm", "k_norm")
    }


def family(
    config: Config,
    size: Sizes,
    layers: Sequence[DecoderLayer],
    eps: float,
    *,
    eos: int | None,
    activation: str | None = None,
    tied: bool = False,
    scale: float = 1.0,
    one_plus: bool = False,
    soft_cap: float = 0.0,
    final_soft_cap: float = 0.0,
) -> DecoderBlueprint:
    """`eos` and `tied` hold where config.json does not say."""
    vocabulary = config.size("vocab_size")
    head, aliases = language_head(
        WORD, size.hidden, vocabulary, config.flag("tie_word_embeddings", tied)
    )
    ropes = [layer.rope for layer in layers if layer.rope is not None]
    return DecoderBlueprint(
        prefix="model",
        hidden_size=size.hidden,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        activation=activation or config.activation("hidden_act", "silu"),
        norm="rms_norm",
        norm_eps=eps,
        embeddings=TokenEmbeddings(Table(f"{WORD}.weight", vocabulary, size.hidden), scale=scale),
        layers=tuple(layers),
        final_norm=rms_norm("norm", size.hidden, eps, one_plus),
        head=head,
        max_length=longest(config, ropes),
        eos_token_ids=config.token_ids("eos_token_id", eos),
        gated=True,
        soft_cap=soft_cap,
        final_soft_cap=final_soft_cap,
        aliases=aliases,
        unread=frequency_buffers("layers.{}.self_attn", len(layers)),
    )


def rms_norm(name: str, size: int, eps: float, one_plus: bool = False) -> Norm:
    return Norm(name, size, eps, bias=False, one_plus=one_plus)


def longest(config: Config, ropes: Sequence[Rope]) -> int:
    """max_position_embeddings, or less where the angles are right for less."""
    limits = [each.max_length for each in ropes if each.max_length is not None]
    return min([config.size("max_position_embeddings", most=LONGEST), *limits])


def frequency_buffers(attention: str, layers: int) -> tuple[str, ...]:
    """What old transformers versions stored beside each attention's weights; it is recomputed."""
    return tuple(f"{attention.format(index)}.rotary_emb." for index in range(layers))
