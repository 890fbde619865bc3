"""GPT-NeoX (Black et al., 2022) and Pythia: RoPE on a part of each head, and attention and
feed-forward in parallel, with the same input."""

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
from fusewire.models.llama_family import frequency_buffers, longest
from fusewire.models.rope import Rope
from fusewire.models.rope_config import read_rope
from fusewire.models.stored_weights import Dense, Norm, Table


def blueprint(config: Config) -> Blueprint:
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
    return language_model(
        config,
        "gpt_neox",
        Stack(
            hidden_size=hidden,
            max_length=longest(config, [rope]),
            embeddings=Embeddings(Table("embed_in.weight", vocabulary, hidden)),
            layers=tuple(_layer(config, index, hidden, heads, eps, rope) for index in range(count)),
            final_norm=Norm("final_layer_norm", hidden, eps),
        ),
        eos=2,
        tied=False,
        stored="embed_out",
        unread=(
            *frequency_buffers("layers.{}.attention", count),
            *(
                f"layers.{index}.attention.{name}"
                for index in range(count)
                for name in ("bias", "masked_bias")
            ),
        ),
    )


def _layer(config: Config, index: int, hidden: int, heads: int, eps: float, rope: Rope) -> Layer:
    root = f"layers.{index}"
    inner = config.size("intermediate_size")
    bias = config.flag("attention_bias", True)
    attention = Attention(
        qkv=Dense((f"{root}.attention.query_key_value",), hidden, 3 * hidden, bias, by_head=heads),
        output=Dense((f"{root}.attention.dense",), hidden, hidden, bias),
        heads=heads,
        right=0,
        rope=rope,
    )
    feed_forward = FeedForward(
        intermediate=Dense((f"{root}.mlp.dense_h_to_4h",), hidden, inner),
        output=Dense((f"{root}.mlp.dense_4h_to_h",), inner, hidden),
        activation=config.activation("hidden_act", "gelu"),
    )
    first = Norm(f"{root}.input_layernorm", hidden, eps)
    second = Norm(f"{root}.post_attention_layernorm", hidden, eps)
    blocks = Block(attention, first), Block(feed_forward, second)
    return Layer(blocks, parallel=config.flag("use_parallel_residual", True))
