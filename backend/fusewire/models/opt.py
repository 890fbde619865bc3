"""OPT (Zhang et al., 2022): learned positions whose first two rows are unused. The 350M model is
post-norm and has token embeddings of half the width."""

from __future__ import annotations

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

_EPS = 1e-5


def blueprint(config: Config) -> Blueprint:
    if not config.flag("layer_norm_elementwise_affine", True):
        raise config.fault("layer_norm_elementwise_affine", False, "true")
    hidden, heads = config.width()
    vocabulary = config.size("vocab_size")
    positions = config.size("max_position_embeddings")
    narrow = config.size_or_null("word_embed_proj_dim", None) or hidden
    pre_norm = config.flag("do_layer_norm_before", True)
    normed_last = pre_norm and not config.flag("_remove_final_layer_norm", False)
    projected = narrow != hidden
    where = "input_norm" if pre_norm else "residual_norm"
    return language_model(
        config,
        "model",
        Stack(
            hidden_size=hidden,
            max_length=positions,
            embeddings=Embeddings(
                Table("decoder.embed_tokens.weight", vocabulary, narrow),
                Table("decoder.embed_positions.weight", positions, hidden, skipped=2),
                word_projection=Dense(("decoder.project_in",), narrow, hidden, bias=False)
                if projected
                else None,
            ),
            layers=tuple(
                _layer(config, index, hidden, heads, where)
                for index in range(config.size("num_hidden_layers", most=4096))
            ),
            final_norm=Norm("decoder.final_layer_norm", hidden, _EPS) if normed_last else None,
        ),
        eos=2,
        tied=True,
        projection=Dense(("decoder.project_out",), hidden, narrow, bias=False)
        if projected
        else None,
    )


def _layer(config: Config, index: int, hidden: int, heads: int, where: str) -> Layer:
    root = f"decoder.layers.{index}"
    inner = config.size("ffn_dim")
    bias = config.flag("enable_bias", True)
    attention = Attention(
        qkv=Dense(
            tuple(f"{root}.self_attn.{name}_proj" for name in "qkv"), hidden, 3 * hidden, bias
        ),
        output=Dense((f"{root}.self_attn.out_proj",), hidden, hidden, bias),
        heads=heads,
        right=0,
    )
    feed_forward = FeedForward(
        intermediate=Dense((f"{root}.fc1",), hidden, inner, bias),
        output=Dense((f"{root}.fc2",), inner, hidden, bias),
        activation=config.activation("activation_function", "relu"),
    )
    first = {where: Norm(f"{root}.self_attn_layer_norm", hidden, _EPS)}
    second = {where: Norm(f"{root}.final_layer_norm", hidden, _EPS)}
    return Layer((Block(attention, **first), Block(feed_forward, **second)))
