"""GPT-NeoX (Black et al., 2022) and Pythia: a part of each head turns, and attention and
feed-forward read the same input."""

from __future__ import annotations

from fusewire.models.blueprint import Dense, Norm, Table
from fusewire.models.config import Config
from fusewire.models.decoder_blueprint import (
    DecoderBlueprint,
    DecoderLayer,
    TokenEmbeddings,
    language_head,
)
from fusewire.models.llama_family import frequency_buffers, longest
from fusewire.models.rope import Rope
from fusewire.models.rope_config import read_rope


def blueprint(config: Config) -> DecoderBlueprint:
    hidden, heads = config.width()
    eps = config.number("layer_norm_eps", 1e-5)
    vocabulary = config.size("vocab_size")
    count = config.size("num_hidden_layers", most=4096)
    rope = read_rope(
        config,
        hidden // heads,
        theta=config.number("rotary_emb_base", 10_000),
        share=config.number("rotary_pct", 0.25),
        partial=True,
    )
    head, aliases = language_head(
        "embed_in",
        hidden,
        vocabulary,
        config.flag("tie_word_embeddings", False),
        stored="embed_out",
    )
    return DecoderBlueprint(
        prefix="gpt_neox",
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        activation=config.activation("hidden_act", "gelu"),
        norm="layer_norm",
        norm_eps=eps,
        embeddings=TokenEmbeddings(Table("embed_in.weight", vocabulary, hidden)),
        layers=tuple(_layer(config, index, hidden, heads, eps, rope) for index in range(count)),
        final_norm=Norm("final_layer_norm", hidden, eps),
        head=head,
        max_length=longest(config, [rope]),
        eos_token_ids=config.token_ids("eos_token_id", 2),
        parallel=config.flag("use_parallel_residual", True),
        aliases=aliases,
        unread=(
            *frequency_buffers("layers.{}.attention", count),
            *(
                f"layers.{index}.attention.{name}"
                for index in range(count)
                for name in ("bias", "masked_bias")
            ),
        ),
    )


def _layer(
    config: Config, index: int, hidden: int, heads: int, eps: float, rope: Rope
) -> DecoderLayer:
    root = f"layers.{index}"
    inner = config.size("intermediate_size")
    bias = config.flag("attention_bias", True)
    return DecoderLayer(
        qkv=Dense((f"{root}.attention.query_key_value",), hidden, 3 * hidden, bias, by_head=heads),
        attention_output=Dense((f"{root}.attention.dense",), hidden, hidden, bias),
        attention_norm=Norm(f"{root}.input_layernorm", hidden, eps),
        intermediate=Dense((f"{root}.mlp.dense_h_to_4h",), hidden, inner),
        output=Dense((f"{root}.mlp.dense_4h_to_h",), inner, hidden),
        output_norm=Norm(f"{root}.post_attention_layernorm", hidden, eps),
        rope=rope,
    )
