"""What Llama and its relatives share: names, pre-norm RMSNorm, a gated feed-forward.

Grouped heads (Ainslie et al., 2023), SwiGLU (Shazeer, 2020), RMSNorm (Zhang and Sennrich, 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from fusewire.models.rope import Rope
from fusewire.models.rope_config import LONGEST
from fusewire.models.stored_weights import Dense, Norm, Table


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
    """Returns the sizes. `head_dim` and `kv_heads` are the architecture's defaults; without them
    head_dim is hidden_size / num_attention_heads, and there are as many key heads as query
    heads."""
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


# Names of the norms in the attention's block and in the feed-forward's.
Norms = tuple[Mapping[str, str], Mapping[str, str]]
_PRE_NORMS: Norms = {"input_norm": "input"}, {"input_norm": "post_attention"}


def family_layer(
    index: int,
    size: Sizes,
    eps: float,
    activation: str,
    *,
    qkv_names: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
    gate_names: Sequence[str] = ("gate_proj", "up_proj"),
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    norms: Norms = _PRE_NORMS,
    norm_heads: bool = False,
    one_plus: bool = False,
    window: int = 0,
    **more: Any,  # arguments of Attention: rope, scale, soft_cap
) -> Layer:
    """Builds a layer. `window`: a token attends to itself and to the window - 1 tokens before it, 0
    for all before it. `norm_heads`: RMSNorm of each query and key head (Qwen 3, Gemma 3).
    `one_plus`: as in Norm."""
    root = f"layers.{index}"
    attention_root, mlp = f"{root}.self_attn", f"{root}.mlp"
    rows = (size.q_width, size.kv_width, size.kv_width)

    def norm(name: str, width: int = size.hidden) -> Norm:
        return rms_norm(f"{root}.{name}", width, eps, one_plus)

    if norm_heads:
        more |= {name: norm(f"self_attn.{name}", size.head_dim) for name in ("q_norm", "k_norm")}
    attention = Attention(
        qkv=Dense(
            tuple(f"{attention_root}.{name}" for name in qkv_names),
            size.hidden,
            sum(rows),
            qkv_bias,
            rows=rows if len(qkv_names) > 1 else (),
        ),
        output=Dense((f"{attention_root}.o_proj",), size.q_width, size.hidden, output_bias),
        heads=size.heads,
        kv_heads=size.kv_heads,
        left=window - 1 if window else None,
        right=0,
        **more,
    )
    feed_forward = FeedForward(
        intermediate=Dense(
            tuple(f"{mlp}.{name}" for name in gate_names),
            size.hidden,
            2 * size.intermediate,
            mlp_bias,
        ),
        output=Dense((f"{mlp}.down_proj",), size.intermediate, size.hidden, mlp_bias),
        activation=activation,
        gated=True,
    )
    first, second = (
        {place: norm(f"{name}_layernorm") for place, name in block.items()} for block in norms
    )
    return Layer((Block(attention, **first), Block(feed_forward, **second)))


def family(
    config: Config,
    size: Sizes,
    layers: Sequence[Layer],
    eps: float,
    *,
    eos: int | None,
    tied: bool = False,
    scale: float = 1.0,
    one_plus: bool = False,
    final_soft_cap: float = 0.0,
) -> Blueprint:
    """Builds the blueprint. `eos` and `tied`: defaults for config.json."""
    vocabulary = config.size("vocab_size")
    ropes = [each.rope for layer in layers for each in layer.attentions if each.rope is not None]
    return language_model(
        config,
        "model",
        Stack(
            hidden_size=size.hidden,
            max_length=longest(config, ropes),
            embeddings=Embeddings(
                Table("embed_tokens.weight", vocabulary, size.hidden), scale=scale
            ),
            layers=tuple(layers),
            final_norm=rms_norm("norm", size.hidden, eps, one_plus),
        ),
        eos=eos,
        tied=tied,
        soft_cap=final_soft_cap,
        unread=frequency_buffers("layers.{}.self_attn", len(layers)),
    )


def rms_norm(name: str, size: int, eps: float, one_plus: bool = False) -> Norm:
    return Norm(name, size, eps, bias=False, one_plus=one_plus, kind="rms_norm")


def longest(config: Config, ropes: Sequence[Rope]) -> int:
    """Returns max_position_embeddings, or less if the RoPE frequencies are exact only up to a
    shorter length."""
    limits = [each.max_length for each in ropes if each.max_length is not None]
    return min([config.size("max_position_embeddings", most=LONGEST), *limits])


def frequency_buffers(attention: str, layers: int) -> tuple[str, ...]:
    """Returns prefixes of buffers that old transformers versions stored with each attention; they
    are recomputed."""
    return tuple(f"{attention.format(index)}.rotary_emb." for index in range(layers))
