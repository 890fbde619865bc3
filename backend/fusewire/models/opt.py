"""OPT (Zhang et al., 2022): learned positions whose first two rows are unused, and, in the 350M
model, norms after each part and word embeddings of half the width."""

from __future__ import annotations

from fusewire.models.blueprint import Dense, Norm, Table
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import (
    DecoderBlueprint,
    DecoderLayer,
    TokenEmbeddings,
    language_head,
)

_EPS = 1e-5


def blueprint(config: Config) -> DecoderBlueprint:
    if not config.flag("layer_norm_elementwise_affine", True):
        raise config.fault("layer_norm_elementwise_affine", False, "true")
    hidden, heads = config.width()
    vocabulary = config.size("vocab_size")
    positions = config.size("max_position_embeddings")
    narrow = config.size_or_null("word_embed_proj_dim", None) or hidden
    pre_norm = config.flag("do_layer_norm_before", True)
    normed_last = pre_norm and not config.flag("_remove_final_layer_norm", False)
    head, aliases = language_head(
        "decoder.embed_tokens", narrow, vocabulary, config.flag("tie_word_embeddings", True)
    )
    projected = narrow != hidden
    if projected:
        head = (Dense(("decoder.project_out",), hidden, narrow, bias=False), *head)
    return DecoderBlueprint(
        prefix="model",
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        activation=config.activation("activation_function", "relu"),
        norm="layer_norm",
        norm_eps=_EPS,
        embeddings=TokenEmbeddings(
            Table("decoder.embed_tokens.weight", vocabulary, narrow),
            Table("decoder.embed_positions.weight", positions, hidden, skipped=2),
            Dense(("decoder.project_in",), narrow, hidden, bias=False) if projected else None,
        ),
        layers=tuple(
            _layer(config, index, hidden)
            for index in range(config.size("num_hidden_layers", most=4096))
        ),
        final_norm=Norm("decoder.final_layer_norm", hidden, _EPS) if normed_last else None,
        head=head,
        max_length=positions,
        eos_token_ids=config.token_ids("eos_token_id", 2),
        pre_norm=pre_norm,
        aliases=aliases,
    )


def _layer(config: Config, index: int, hidden: int) -> DecoderLayer:
    root = f"decoder.layers.{index}"
    inner = config.size("ffn_dim")
    bias = config.flag("enable_bias", True)
    return DecoderLayer(
        qkv=Dense(
            tuple(f"{root}.self_attn.{name}_proj" for name in "qkv"), hidden, 3 * hidden, bias
        ),
        attention_output=Dense((f"{root}.self_attn.out_proj",), hidden, hidden, bias),
        attention_norm=Norm(f"{root}.self_attn_layer_norm", hidden, _EPS),
        intermediate=Dense((f"{root}.fc1",), hidden, inner, bias),
        output=Dense((f"{root}.fc2",), inner, hidden, bias),
        output_norm=Norm(f"{root}.final_layer_norm", hidden, _EPS),
    )
