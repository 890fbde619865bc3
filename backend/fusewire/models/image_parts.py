"""The parts that encoders of images, and of the texts compared with them, have in common; their
files differ only in names and order."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.models.blueprint import Attention, Block, FeedForward, Layer, Patches
from fusewire.models.config import ACTIVATIONS, Config
from fusewire.models.stored_weights import Dense, Norm, Values


@dataclass(frozen=True)
class LayerNames:
    """The names of a pre-norm layer's weights, relative to the layer's prefix. `scales`: factors
    per feature of the outputs of attention and feed-forward (CaiT, Touvron et al., 2021)."""

    qkv: tuple[str, str, str]
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str
    scales: tuple[str, str] | None = None


# x sigmoid(1.702 x) = silu(1.702 x) / 1.702: the weights before and after it take the factors.
_QUICK_GELU = 1.702
_ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": "quick_gelu"}


def patches(
    config: Config,
    hidden: int,
    projection: str,
    position: str,
    leading: tuple[Values, ...],
    *,
    bias: bool = True,
    batched: bool = True,
    norm: Norm | None = None,
) -> Patches:
    """Builds the input block. `batched`: positions are stored as [1, tokens, hidden], not as
    [tokens, hidden]."""
    size = config.size("patch_size", 16, most=1 << 10)
    height, width = config.one_or_two_sizes("image_size", 224, most=1 << 14, least=size)
    channels = config.values.get("num_channels", 3)
    if channels != 3:
        raise config.fault("num_channels", channels, "3, the channels of an RGB image")
    rows, columns = height // size, width // size
    return Patches(
        size=size,
        grid=(rows, columns),
        projection=Values(f"{projection}.weight", (hidden, channels, size, size)),
        bias=Values(f"{projection}.bias", (hidden,)) if bias else None,
        leading=leading,
        position=Values(position, (*(1,) * batched, len(leading) + rows * columns, hidden)),
        norm=norm,
    )


def pre_norm_layers(
    config: Config,
    root: str,
    names: LayerNames,
    hidden: int,
    heads: int,
    intermediate: int,
    eps: float,
    *,
    qkv_bias: bool = True,
    gated: bool = False,
    right: int | None = None,
) -> tuple[Layer, ...]:
    """Builds layers x += attention(norm(x)); x += feed_forward(norm(x)). A gated feed-forward is
    SwiGLU (Shazeer, 2020)."""
    scales = names.scales or ("", "")

    def layer(at: str) -> Layer:
        scaled = [f"{at}.{scale}" if scale else "" for scale in scales]
        attention = Attention(
            qkv=Dense(tuple(f"{at}.{name}" for name in names.qkv), hidden, 3 * hidden, qkv_bias),
            output=Dense((f"{at}.{names.attention_output}",), hidden, hidden, row_scale=scaled[0]),
            heads=heads,
            kv_heads=heads,
            right=right,
        )
        inner = feed_forward(
            config,
            f"{at}.{names.intermediate}",
            f"{at}.{names.output}",
            hidden,
            intermediate,
            gated=gated,
            row_scale=scaled[1],
        )
        return Layer(
            (
                Block(attention, input_norm=Norm(f"{at}.{names.attention_norm}", hidden, eps)),
                Block(inner, input_norm=Norm(f"{at}.{names.output_norm}", hidden, eps)),
            )
        )

    count = config.size("num_hidden_layers", 12, most=4096)
    return tuple(layer(f"{root}.{index}") for index in range(count))


def feed_forward(
    config: Config,
    intermediate_name: str,
    output_name: str,
    hidden: int,
    intermediate: int,
    *,
    gated: bool = False,
    row_scale: str = "",
) -> FeedForward:
    """Builds a feed-forward with the activation of config.json; SwiGLU if it is gated."""
    factor = 1.0
    if gated:
        activation = "silu"
    else:
        activation = config.choice("hidden_act", "gelu", _ACTIVATIONS)
        if activation == "quick_gelu":
            activation, factor = "silu", _QUICK_GELU
    return FeedForward(
        Dense(
            (intermediate_name,),
            hidden,
            intermediate * (2 if gated else 1),
            weight_scale=factor,
            bias_scale=factor,
        ),
        Dense((output_name,), intermediate, hidden, row_scale=row_scale, weight_scale=1 / factor),
        activation,
        gated,
    )
