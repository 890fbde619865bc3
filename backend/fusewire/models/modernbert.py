"""ModernBERT (Warner et al., 2024): pre-norm, RoPE, gated feed-forward, and local attention in most
layers. All heads begin with the same dense + norm layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.models.blueprint import (
    Attention,
    Block,
    Blueprint,
    Embeddings,
    FeedForward,
    Head,
    Layer,
    Stack,
)
from fusewire.models.config import Config
from fusewire.models.rope import Rope, unscaled
from fusewire.models.stored_weights import Dense, Norm, Table
from fusewire.models.windows import layer_types

WORD = "embeddings.tok_embeddings.weight"
_THETA = {  # layer type -> (key in older configurations, default)
    "full_attention": ("global_rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", 10_000.0),
}


def blueprint(config: Config) -> Blueprint:
    hidden, heads = config.width()
    if hidden // heads % 2:
        raise config.fault("num_attention_heads", heads, "heads of an even size (rotary)")
    eps = config.number("norm_eps", 1e-5)
    norm_bias = config.flag("norm_bias", False)
    vocabulary = config.size("vocab_size")
    labels = len(config.labels())
    shared = Dense(
        ("head.dense",),
        hidden,
        hidden,
        bias=config.flag("classifier_bias", False),
        activation=config.activation("classifier_activation", "gelu"),
        norm=Norm("head.norm", hidden, eps, norm_bias),
    )
    pooling = config.choice("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"})
    decoder = Dense(("decoder",), hidden, vocabulary, bias=config.flag("decoder_bias", True))
    tied = config.flag("tie_word_embeddings", True)
    return Blueprint(
        prefix="model",
        stack=Stack(
            hidden_size=hidden,
            max_length=config.size("max_position_embeddings", 8192, most=1 << 17),
            embeddings=Embeddings(
                word=Table(WORD, vocabulary, hidden),
                norm=Norm("embeddings.norm", hidden, eps, norm_bias),
            ),
            layers=_layers(config, hidden, heads, eps, norm_bias),
            final_norm=Norm("final_norm", hidden, eps, norm_bias),
        ),
        task_heads={
            "classify": Head(pooling, (shared, Dense(("classifier",), hidden, labels))),
            "tag": Head(None, (shared, Dense(("classifier",), hidden, labels))),
            "answer": Head(None, (shared, Dense(("classifier",), hidden, 2))),
            "fill": Head(None, (shared, decoder)),
        },
        unread=("head.", "decoder.", "classifier."),
        aliases={"decoder.weight": WORD} if tied else {},
    )


def _layers(
    config: Config, hidden: int, heads: int, eps: float, norm_bias: bool
) -> tuple[Layer, ...]:
    intermediate = config.size("intermediate_size")
    attention_bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    # transformers attends where |i - j| <= local_attention // 2.
    window = config.size("local_attention", 128, least=2) // 2
    activation = config.activation("hidden_activation", "gelu")
    ropes = {kind: Rope.of(unscaled(_theta(config, kind), hidden // heads)) for kind in _THETA}

    def local(index: int) -> bool:  # in older configurations every nth layer is global
        return index % config.size("global_attn_every_n_layers", 3) != 0

    layers = []
    for index, kind in enumerate(layer_types(config, local)):
        root = f"layers.{index}"
        side = window if kind == "sliding_attention" else None
        attention = Attention(
            qkv=Dense((f"{root}.attn.Wqkv",), hidden, 3 * hidden, attention_bias),
            output=Dense((f"{root}.attn.Wo",), hidden, hidden, attention_bias),
            heads=heads,
            left=side,
            right=side,
            rope=ropes[kind],
        )
        feed_forward = FeedForward(
            intermediate=Dense((f"{root}.mlp.Wi",), hidden, 2 * intermediate, mlp_bias),
            output=Dense((f"{root}.mlp.Wo",), intermediate, hidden, mlp_bias),
            activation=activation,
            gated=True,
        )
        # The embeddings are normalised already: the first layer has no norm before attention.
        first = Norm(f"{root}.attn_norm", hidden, eps, norm_bias) if index else None
        second = Norm(f"{root}.mlp_norm", hidden, eps, norm_bias)
        layers.append(Layer((Block(attention, first), Block(feed_forward, second))))
    return tuple(layers)


def _theta(config: Config, kind: str) -> float:
    if config.values.get("rope_scaling") is not None:
        raise config.fault("rope_scaling", config.values["rope_scaling"], "null")
    key, default = _THETA[kind]
    parameters = config.values.get("rope_parameters") or {}
    chosen: Any = parameters.get(kind) if isinstance(parameters, Mapping) else parameters
    if chosen is None:
        return config.number(key, default)
    if not isinstance(chosen, Mapping) or chosen.get("rope_type", "default") != "default":
        raise config.fault("rope_parameters", parameters, "rope_type 'default' by layer type")
    nested = Config(chosen)
    return nested.number("rope_theta", config.number(key, default))
