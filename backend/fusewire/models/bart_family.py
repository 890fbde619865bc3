"""What BART and its relatives share: learned or fixed positions, LayerNorm, biases everywhere, an
encoder and a decoder of the same parts. Their files differ in norms, positions and vocabularies."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fusewire.models.blueprint import (
    Attention,
    Block,
    Blueprint,
    CrossAttention,
    Embeddings,
    FeedForward,
    Head,
    Layer,
    Sinusoids,
    Stack,
)
from fusewire.models.config import Config
from fusewire.models.stored_weights import Dense, Norm, Table
from fusewire.models.target_tokens import TargetTokens

_EPS = 1e-5
SHARED = "shared.weight"
# Sinusoidal positions that old transformers versions stored.
STORED_SINUSOIDS = ("encoder.embed_positions.", "decoder.embed_positions.")
_TARGET_TOKENS = "decoder.embed_tokens.weight"


def bart_family(
    config: Config,
    *,
    pre_norm: bool,
    position: Mapping[str, Table | Sinusoids],
    embedding_norm: bool,
    eos: int | None,
    target: TargetTokens,
    target_vocabulary: int | None = None,
    scaled: bool = False,
    padding_index: int | None = None,
    logits_bias: bool = True,
    unread: tuple[str, ...] = (),
) -> Blueprint:
    """Builds the blueprint. `pre_norm`: norms before each sublayer and at the end of both stacks,
    else after each sublayer. `position`: the positions of "encoder" and "decoder".
    `target_vocabulary`: the vocabulary size of a decoder with token embeddings of its own.
    `scaled`, `eos` and `target`: defaults for config.json. `padding_index`: of the encoder, as in
    `Embeddings`. `logits_bias`: whether the head has a bias."""
    hidden, vocab_size = config.size("d_model"), config.size("vocab_size")
    vocabularies = {"encoder": vocab_size, "decoder": target_vocabulary or vocab_size}
    stacks = {
        side: Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings"),
            embeddings=Embeddings(
                Table(f"{side}.embed_tokens.weight", vocabulary, hidden),
                position[side],
                norm=norm_of(config, f"{side}.layernorm_embedding") if embedding_norm else None,
                scale=math.sqrt(hidden) if config.flag("scale_embedding", scaled) else 1.0,
                padding_index=padding_index if side == "encoder" else None,
            ),
            layers=tuple(
                layer_of(config, side, index, pre_norm=pre_norm)
                for index in range(config.size(f"{side}_layers", most=4096))
            ),
            final_norm=norm_of(config, f"{side}.layer_norm") if pre_norm else None,
        )
        for side, vocabulary in vocabularies.items()
    }
    tied = {}
    if target_vocabulary is None:
        tied = {f"{side}.embed_tokens.weight": SHARED for side in stacks}
    if config.flag("tie_word_embeddings", True):
        tied["lm_head.weight"] = tied.get(_TARGET_TOKENS, _TARGET_TOKENS)
    head = Dense(
        ("lm_head",),
        hidden,
        vocabularies["decoder"],
        bias=logits_bias,
        bias_row="final_logits_bias" if logits_bias else "",
    )
    return Blueprint(
        prefix="model",
        stack=stacks["decoder"],
        encoder=stacks["encoder"],
        task_heads={"generate": Head(None, (head,))},
        unread=("encoder.version", "decoder.version", *unread),
        aliases=tied,
        eos_token_ids=config.token_ids("eos_token_id", eos),
        target=target.where_given(config),
    )


def learned_positions(config: Config, skipped: int) -> dict[str, Table | Sinusoids]:
    """Returns tables whose first `skipped` rows are unused."""
    rows, hidden = config.size("max_position_embeddings"), config.size("d_model")
    return {
        side: Table(f"{side}.embed_positions.weight", rows, hidden, skipped)
        for side in ("encoder", "decoder")
    }


def fixed_positions(config: Config) -> dict[str, Table | Sinusoids]:
    rows, hidden = config.size("max_position_embeddings"), config.size("d_model")
    return dict.fromkeys(("encoder", "decoder"), Sinusoids(rows, hidden))


def layer_of(
    config: Config, side: str, index: int, *, pre_norm: bool, unbiased: tuple[str, ...] = ()
) -> Layer:
    """Returns a layer of the "encoder" or "decoder". `unbiased`: projections of its attentions
    without a bias."""
    root = f"{side}.layers.{index}"
    hidden, heads = config.width("d_model", f"{side}_attention_heads")
    inner = config.size(f"{side}_ffn_dim")

    def dense(*names: str, inputs: int = hidden, outputs: int = hidden) -> Dense:
        without = tuple(f"{root}.{name}" for name in names if name.endswith(unbiased))
        return Dense(
            tuple(f"{root}.{name}" for name in names),
            inputs,
            outputs * len(names),
            unbiased=without,
        )

    def block(part: Attention | CrossAttention | FeedForward, norm: str) -> Block:
        made = norm_of(config, f"{root}.{norm}")
        return Block(part, made) if pre_norm else Block(part, residual_norm=made)

    attention = Attention(
        qkv=dense(*(f"self_attn.{name}_proj" for name in "qkv")),
        output=dense("self_attn.out_proj"),
        heads=heads,
        right=0 if side == "decoder" else None,
    )
    cross_attention = CrossAttention(
        q=dense("encoder_attn.q_proj"),
        kv=dense("encoder_attn.k_proj", "encoder_attn.v_proj"),
        output=dense("encoder_attn.out_proj"),
        heads=heads,
    )
    feed_forward = FeedForward(
        intermediate=dense("fc1", outputs=inner),
        output=dense("fc2", inputs=inner),
        activation=config.activation("activation_function", "gelu"),
    )
    crossed = (block(cross_attention, "encoder_attn_layer_norm"),) if side == "decoder" else ()
    return Layer(
        (
            block(attention, "self_attn_layer_norm"),
            *crossed,
            block(feed_forward, "final_layer_norm"),
        )
    )


def norm_of(config: Config, name: str) -> Norm:
    return Norm(name, config.size("d_model"), _EPS)
