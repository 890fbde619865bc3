"""T5's encoder (Raffel et al., 2020) with its relatives: v1.1 and Flan-T5, ByT5, mT5 (Xue et al.,
2021) and UMT5 (Chung et al., 2023). RMSNorm in front of each part, scores without a scale, position
by a bias of distances alone; no matrix has a bias.

Read from folders of whole encoder-decoder models too, whose decoder is left out.
"""

from __future__ import annotations

from fusewire.models.blueprint import (
    Attention,
    Block,
    Blueprint,
    Dense,
    Embeddings,
    FeedForward,
    Layer,
    PositionBias,
    Stack,
    Table,
)
from fusewire.models.config import ACTIVATIONS, Config
from fusewire.models.llama_family import rms_norm

WORD = "shared.weight"
# Distances have no end, so neither has a text; what is kept free for one has.
MAX_LENGTH = 8192


def t5(config: Config) -> Blueprint:
    """Layers share the first one's bias."""
    return _encoder(config, "relu", biased_layers=1)


def mt5(config: Config) -> Blueprint:
    return _encoder(config, "gated-gelu", biased_layers=1)


def umt5(config: Config) -> Blueprint:
    """Each layer has a bias of its own."""
    return _encoder(config, "gated-gelu", biased_layers=None)


def _encoder(config: Config, feed_forward: str, *, biased_layers: int | None) -> Blueprint:
    """`feed_forward`: where config.json does not say. `biased_layers`: that have a bias of their
    own, the others take the last one's; None: all."""
    hidden, heads = config.size("d_model"), config.size("num_heads")
    layers = config.size("num_layers", most=4096)
    eps = config.number("layer_norm_epsilon", 1e-6)
    activation, gated = _feed_forward(config, feed_forward)
    biases = [_bias(config, index, heads) for index in range(biased_layers or layers)]
    return Blueprint(
        prefix="",
        stack=Stack(
            hidden_size=hidden,
            max_length=MAX_LENGTH,
            embeddings=Embeddings(Table(WORD, config.size("vocab_size"), hidden)),
            layers=tuple(
                _layer(config, index, biases[min(index, len(biases) - 1)], eps, activation, gated)
                for index in range(layers)
            ),
            final_norm=rms_norm("encoder.final_layer_norm", hidden, eps),
            outgrows_float16=True,
        ),
        task_heads={},
        unread=("decoder.", "lm_head."),
        aliases={"encoder.embed_tokens.weight": WORD},
    )


def _layer(
    config: Config, index: int, bias: PositionBias, eps: float, activation: str, gated: bool
) -> Layer:
    hidden, heads, intermediate = (config.size(key) for key in ("d_model", "num_heads", "d_ff"))
    inner = heads * config.size("d_kv", most=1 << 12)
    attention, dense = (
        f"encoder.block.{index}.layer.{part}" for part in ("0.SelfAttention", "1.DenseReluDense")
    )
    first = tuple(f"{dense}.{name}" for name in (("wi_0", "wi_1") if gated else ("wi",)))
    self_attention = Attention(
        qkv=Dense(tuple(f"{attention}.{name}" for name in "qkv"), hidden, 3 * inner, False),
        output=Dense((f"{attention}.o",), inner, hidden, False),
        heads=heads,
        scale=1.0,
        position_bias=bias,
    )
    feed_forward = FeedForward(
        intermediate=Dense(first, hidden, len(first) * intermediate, False),
        output=Dense((f"{dense}.wo",), intermediate, hidden, False),
        activation=activation,
        gated=gated,
    )
    first_norm, second_norm = (
        rms_norm(f"encoder.block.{index}.layer.{part}.layer_norm", hidden, eps) for part in (0, 1)
    )
    return Layer((Block(self_attention, first_norm), Block(feed_forward, second_norm)))


def _bias(config: Config, layer: int, heads: int) -> PositionBias:
    buckets = config.size("relative_attention_num_buckets", 32, most=1 << 12, least=4)
    # A quarter of them are exact: in each direction those of distances below it.
    distance = config.size(
        "relative_attention_max_distance", 128, most=1 << 16, least=buckets // 4 + 1
    )
    name = f"encoder.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
    return PositionBias(Table(name, buckets, heads), distance)


def _feed_forward(config: Config, default: str) -> tuple[str, bool]:
    """(activation, whether there is a gate). Written `relu` or `gated-relu`; T5's gated GELU is the
    approximation by tanh."""
    words = {name: (activation, False) for name, activation in ACTIVATIONS.items()}
    words |= {f"gated-{name}": (activation, True) for name, (activation, _) in words.items()}
    words["gated-gelu"] = ACTIVATIONS["gelu_new"], True
    written = config.values.get("feed_forward_proj", default)
    if not isinstance(written, str) or written not in words:
        raise config.fault("feed_forward_proj", written, f"one of {', '.join(words)}")
    activation, gated = words[written]
    # What transformers writes beside it, and would follow if it differed.
    if config.given("dense_act_fn") and config.activation("dense_act_fn") != activation:
        raise config.fault("dense_act_fn", config.values["dense_act_fn"], f"that of {written}")
    if config.flag("is_gated_act", gated) != gated:
        raise config.fault("is_gated_act", not gated, f"that of {written}")
    return activation, gated
