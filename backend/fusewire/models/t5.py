"""T5 (Raffel et al., 2020) and its relatives: v1.1 and Flan-T5, ByT5, mT5 (Xue et al., 2021) and
UMT5 (Chung et al., 2023). Pre-norm RMSNorm, unscaled attention scores, positions only by a
relative-position bias, no biases of matrices."""

from __future__ import annotations

from dataclasses import replace

from fusewire.models.blueprint import (
    Attention,
    Block,
    Blueprint,
    CrossAttention,
    Embeddings,
    FeedForward,
    Head,
    Layer,
    PositionBias,
    Stack,
)
from fusewire.models.config import ACTIVATIONS, Config
from fusewire.models.llama_family import rms_norm
from fusewire.models.stored_weights import Dense, Table
from fusewire.models.target_tokens import TargetTokens

WORD = "shared.weight"
# Relative positions do not limit the length of a text, but the memory that it reserves is limited.
MAX_LENGTH = 8192


def t5(config: Config) -> Blueprint:
    """All layers share the position bias of the first."""
    return _blueprint(config, "relu", shared_bias=True, scaled=_scaled(config))


def mt5(config: Config) -> Blueprint:
    return _blueprint(config, "gated-gelu", shared_bias=True, scaled=False, decoder_start=0)


def umt5(config: Config) -> Blueprint:
    """Each layer has a position bias of its own."""
    scaled = _scaled(config)
    return _blueprint(config, "gated-gelu", shared_bias=False, scaled=scaled, decoder_start=0)


def _scaled(config: Config) -> bool:
    """Whether logits are scaled. v1.1 and UMT5 say by tie_word_embeddings that they are not; files
    of transformers 5 have a key for it."""
    return config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))


def _blueprint(
    config: Config,
    feed_forward: str,
    *,
    shared_bias: bool,
    scaled: bool,
    decoder_start: int | None = None,
) -> Blueprint:
    """Builds the blueprint. `feed_forward` and `decoder_start`: defaults for config.json.
    `shared_bias`: all layers have the position bias of the first. `scaled`: the input of the head
    is scaled by 1 / sqrt(d_model)."""
    hidden, vocab_size = config.size("d_model"), config.size("vocab_size")
    layers = config.size("num_layers", most=4096)
    counts = {
        "encoder": layers,
        "decoder": config.size("num_decoder_layers", most=4096)
        if config.given("num_decoder_layers")
        else layers,
    }
    activation, gated = _feed_forward(config, feed_forward)
    eps = config.number("layer_norm_epsilon", 1e-6)
    # The scale of the head's input is applied by the norm before it.
    scales = {"encoder": 1.0, "decoder": hidden**-0.5 if scaled else 1.0}
    stacks = {
        side: Stack(
            hidden_size=hidden,
            max_length=MAX_LENGTH,
            embeddings=Embeddings(Table(f"{side}.embed_tokens.weight", vocab_size, hidden)),
            layers=tuple(
                _layer(config, side, index, 0 if shared_bias else index, eps, activation, gated)
                for index in range(count)
            ),
            final_norm=replace(
                rms_norm(f"{side}.final_layer_norm", hidden, eps), scale=scales[side]
            ),
            overflows_float16=True,
        )
        for side, count in counts.items()
    }
    return Blueprint(
        prefix="",
        stack=stacks["decoder"],
        encoder=stacks["encoder"],
        task_heads={"generate": Head(None, (Dense(("lm_head",), hidden, vocab_size, False),))},
        # Old files have it, but it is not used.
        unread=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",),
        aliases=dict.fromkeys(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
            WORD,
        ),
        eos_token_ids=config.token_ids("eos_token_id", 1),
        target=TargetTokens(decoder_start=decoder_start).where_given(config),
    )


def _layer(
    config: Config, side: str, index: int, biased: int, eps: float, activation: str, gated: bool
) -> Layer:
    """Builds a layer. `biased`: the layer whose position bias it has."""
    hidden, heads, intermediate = (config.size(key) for key in ("d_model", "num_heads", "d_ff"))
    inner = heads * config.size("d_kv", most=1 << 12)
    root = f"{side}.block.{index}.layer"
    last = 2 if side == "decoder" else 1

    def dense(place: str, *names: str, inputs: int = hidden, outputs: int = hidden) -> Dense:
        matrices = tuple(f"{root}.{place}.{name}" for name in names)
        return Dense(matrices, inputs, outputs * len(names), False)

    def block(place: int, part: Attention | CrossAttention | FeedForward) -> Block:
        return Block(part, rms_norm(f"{root}.{place}.layer_norm", hidden, eps))

    itself, source, wise = "0.SelfAttention", "1.EncDecAttention", f"{last}.DenseReluDense"
    attention = Attention(
        qkv=dense(itself, "q", "k", "v", outputs=inner),
        output=dense(itself, "o", inputs=inner),
        heads=heads,
        right=0 if side == "decoder" else None,
        scale=1.0,
        position_bias=_bias(config, side, biased, heads),
    )
    cross_attention = CrossAttention(
        q=dense(source, "q", outputs=inner),
        kv=dense(source, "k", "v", outputs=inner),
        output=dense(source, "o", inputs=inner),
        heads=heads,
        scale=1.0,
    )
    feed_forward = FeedForward(
        intermediate=dense(wise, *(("wi_0", "wi_1") if gated else ("wi",)), outputs=intermediate),
        output=dense(wise, "wo", inputs=intermediate),
        activation=activation,
        gated=gated,
    )
    crossed = (block(1, cross_attention),) if side == "decoder" else ()
    return Layer((block(0, attention), *crossed, block(last, feed_forward)))


def _bias(config: Config, side: str, layer: int, heads: int) -> PositionBias:
    buckets = config.size("relative_attention_num_buckets", 32, most=1 << 12, least=4)
    # Half of a direction's buckets are for single distances. A decoder has one direction.
    causal = side == "decoder"
    exact = buckets // (2 if causal else 4)
    distance = config.size("relative_attention_max_distance", 128, most=1 << 16, least=exact + 1)
    name = f"{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
    return PositionBias(Table(name, buckets, heads), distance, causal)


def _feed_forward(config: Config, default: str) -> tuple[str, bool]:
    """Returns (activation, whether the feed-forward is gated). The key is `relu` or `gated-relu`,
    for example; T5's gated GELU is the tanh approximation."""
    known = {name: (activation, False) for name, activation in ACTIVATIONS.items()}
    known |= {f"gated-{name}": (activation, True) for name, (activation, _) in known.items()}
    known["gated-gelu"] = ACTIVATIONS["gelu_new"], True
    written = config.values.get("feed_forward_proj", default)
    if not isinstance(written, str) or written not in known:
        raise config.fault("feed_forward_proj", written, f"one of {', '.join(known)}")
    activation, gated = known[written]
    # transformers writes these keys too, and would follow them if they differed.
    if config.given("dense_act_fn") and config.activation("dense_act_fn") != activation:
        raise config.fault("dense_act_fn", config.values["dense_act_fn"], f"that of {written}")
    if config.flag("is_gated_act", gated) != gated:
        raise config.fault("is_gated_act", not gated, f"that of {written}")
    return activation, gated
