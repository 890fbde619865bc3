"""ModernBERT (Warner et al., 2024): pre-norm, rotary positions, gated feed-forward, and local
attention in most layers. Its heads share one dense + norm layer in front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.models.blueprint import Blueprint, Dense, Embeddings, Head, Layer, Norm, Table
from fusewire.models.config import Config

WORD = "embeddings.tok_embeddings.weight"
_LAYER_TYPES = ("full_attention", "sliding_attention")
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
        hidden_size=hidden,
        heads=heads,
        activation=config.activation("hidden_activation", "gelu"),
        norm_eps=eps,
        embeddings=Embeddings(
            word=Table(WORD, vocabulary, hidden),
            position=None,
            token_type=None,
            norm=Norm("embeddings.norm", hidden, eps, norm_bias),
        ),
        layers=_layers(config, hidden, eps, norm_bias),
        max_length=config.size("max_position_embeddings", 8192, most=1 << 17),
        task_heads={
            "classify": Head(pooling, (shared, Dense(("classifier",), hidden, labels))),
            "tag": Head(None, (shared, Dense(("classifier",), hidden, labels))),
            "answer": Head(None, (shared, Dense(("classifier",), hidden, 2))),
            "fill": Head(None, (shared, decoder)),
        },
        other_heads=("head.", "decoder.", "classifier."),
        aliases={"decoder.weight": WORD} if tied else {},
        pre_norm=True,
        gated=True,
        final_norm=Norm("final_norm", hidden, eps, norm_bias),
    )


def _layers(config: Config, hidden: int, eps: float, norm_bias: bool) -> tuple[Layer, ...]:
    intermediate = config.size("intermediate_size")
    attention_bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    # transformers attends where |i - j| <= local_attention // 2.
    window = config.size("local_attention", 128, least=2) // 2
    theta = {kind: _theta(config, kind) for kind in _LAYER_TYPES}
    layers = []
    for index, kind in enumerate(_layer_types(config)):
        root = f"layers.{index}"
        layers.append(
            Layer(
                qkv=Dense((f"{root}.attn.Wqkv",), hidden, 3 * hidden, attention_bias),
                attention_output=Dense((f"{root}.attn.Wo",), hidden, hidden, attention_bias),
                # The embeddings are normalised already: the first layer has no norm in front.
                attention_norm=Norm(f"{root}.attn_norm", hidden, eps, norm_bias) if index else None,
                intermediate=Dense((f"{root}.mlp.Wi",), hidden, 2 * intermediate, mlp_bias),
                output=Dense((f"{root}.mlp.Wo",), intermediate, hidden, mlp_bias),
                output_norm=Norm(f"{root}.mlp_norm", hidden, eps, norm_bias),
                window=window if kind == "sliding_attention" else 0,
                rope_theta=theta[kind],
            )
        )
    return tuple(layers)


def _layer_types(config: Config) -> list[str]:
    count = config.size("num_hidden_layers", most=4096)
    types = config.values.get("layer_types")
    if types is None:  # older configurations: every n-th layer is global
        every = config.size("global_attn_every_n_layers", 3)
        return [_LAYER_TYPES[bool(index % every)] for index in range(count)]
    if not isinstance(types, list) or len(types) != count or not set(types) <= {*_LAYER_TYPES}:
        raise config.fault("layer_types", types, f"{count} of {', '.join(_LAYER_TYPES)}")
    return types


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
