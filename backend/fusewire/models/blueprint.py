"""Data types of a blueprint: the parts of a model, and their sizes.

A blueprint is data. `layer_builder.py` builds its layers and `stack.py` runs them, so an
architecture is added by writing one function from config.json to a Blueprint. The names of its
weights are in `stored_weights.py`'s types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusewire.models.rope import Rope
from fusewire.models.stored_weights import Dense, Norm, Table, Values, tensors_of
from fusewire.models.target_tokens import TargetTokens


@dataclass(frozen=True)
class Sinusoids:
    """Fixed positions [rows, columns], which checkpoints need not contain (`positions.sinusoids`).
    The table begins with `skipped` further rows that are never looked up. `padding_index`: the
    table is tensor2tensor's, with zeros in this row (M2M-100)."""

    rows: int
    columns: int
    skipped: int = 0
    padding_index: int | None = None


@dataclass(frozen=True)
class Embeddings:
    """projection(norm(scale * token embedding + position + token type)), without the parts that are
    None.

    `word_projection` and `word_norm` are applied to the rows of the token embeddings once, when
    they are loaded. `padding_index`: positions count from this id + 1, and padding tokens do not
    count (RoBERTa).
    """

    word: Table
    position: Table | Sinusoids | None = None
    token_type: Table | None = None
    norm: Norm | None = None
    projection: Dense | None = None
    word_projection: Dense | None = None
    word_norm: Norm | None = None
    scale: float = 1.0
    padding_index: int | None = None

    def __post_init__(self) -> None:
        # Kernels add token types only to embeddings that are normalised and not scaled.
        assert self.token_type is None or (self.norm is not None and self.scale == 1)

    @property
    def word_as_stored(self) -> bool:
        """Whether the token embeddings are the unchanged tensor, which can be shared."""
        return self.word_projection is None and self.word_norm is None and not self.word.skipped


@dataclass(frozen=True)
class Patches:
    """The input block of images: norm(projection of each patch + bias + position), behind the
    `leading` tokens, which have positions too.

    A patch is [channels, size, size] pixels, the projection [hidden, channels, size, size].
    `position` has a row for each leading token and for each patch of `grid`, (rows, columns).
    """

    size: int
    grid: tuple[int, int]
    projection: Values
    bias: Values | None
    leading: tuple[Values, ...]
    position: Values
    norm: Norm | None = None


@dataclass(frozen=True)
class Convolution:
    """gelu(y) of a convolution over time: weight [outputs, inputs, 3] and its bias. Windows are
    centred at every `stride`th frame; the frames before the first and behind the last are zeros."""

    weight: Values
    bias: Values
    stride: int = 1


@dataclass(frozen=True)
class Frames:
    """The input block of audio: the convolutions in order, + position. The input is `frames` frames
    of `bins` values; the output has as many rows as `position`."""

    frames: int
    bins: int
    convolutions: tuple[Convolution, ...]
    position: Table


@dataclass(frozen=True)
class PositionBias:
    """A bias of attention scores by the bucket of the distance (`positions.relative_buckets`).
    `table` is [buckets, heads]. Distances of `max_distance` and more share a bucket. `causal`: all
    buckets are for keys before the query."""

    table: Table
    max_distance: int = 128
    causal: bool = False


@dataclass(frozen=True)
class Attention:
    """Self-attention. The rows of qkv are q | k | v.

    A token attends to at most `left` tokens before and `right` tokens behind it, None for all:
    right = 0 is causal. `scale`: scale of the scores, 0 for 1 / sqrt(head_dim). `soft_cap`: soft
    cap of the scores, 0 for none. `q_norm`, `k_norm`: norms of each head, before RoPE.
    """

    qkv: Dense
    output: Dense
    heads: int
    kv_heads: int = 0  # 0: as many as heads
    left: int | None = None
    right: int | None = None
    scale: float = 0.0
    soft_cap: float = 0.0
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None
    position_bias: PositionBias | None = None

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, and of its values."""
        return (self.qkv.outputs - self.output.inputs) // 2


@dataclass(frozen=True)
class CrossAttention:
    """Attention of a decoder's tokens to all tokens of their source, behind the self-attention of a
    layer.

    The rows of kv are k | v, projections of the encoder's output, with the width of the
    self-attention's: both are in the same planes of a cache. `scale`: scale of the scores, 0 for 1
    / sqrt(head_dim).
    """

    q: Dense
    kv: Dense
    output: Dense
    heads: int
    scale: float = 0.0


@dataclass(frozen=True)
class FeedForward:
    """output(activation(intermediate(x))). Gated: the rows of intermediate are gate | up."""

    intermediate: Dense
    output: Dense
    activation: str
    gated: bool = False


@dataclass(frozen=True)
class Block:
    """x = residual_norm(x + output_norm(sublayer(input_norm(x)))), without the norms that are
    None."""

    sublayer: Attention | CrossAttention | FeedForward
    input_norm: Norm | None = None
    output_norm: Norm | None = None
    residual_norm: Norm | None = None


@dataclass(frozen=True)
class Layer:
    """Blocks in order; with `parallel` all of them read the layer's input. Equal layers are built
    once (ALBERT shares its weights)."""

    blocks: tuple[Block, ...]
    parallel: bool = False

    @property
    def attentions(self) -> list[Attention]:
        return [each.sublayer for each in self.blocks if isinstance(each.sublayer, Attention)]

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        return [each.sublayer for each in self.blocks if isinstance(each.sublayer, CrossAttention)]


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder without its heads. `overflows_float16`: its hidden states can exceed
    65504, float16's maximum."""

    hidden_size: int
    max_length: int  # positions
    embeddings: Embeddings | Patches | Frames
    layers: tuple[Layer, ...]
    final_norm: Norm | None = None
    overflows_float16: bool = False

    @property
    def attentions(self) -> list[Attention]:
        return [attention for layer in self.layers for attention in layer.attentions]

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        return [attention for layer in self.layers for attention in layer.cross_attentions]


@dataclass(frozen=True)
class AttentionPooling:
    """y + feed_forward(norm(y)) for each sequence, where y = output(attention) of one learned
    query, `probe` [1, 1, hidden], to all tokens of the sequence (SigLIP). The rows of `weight` [3
    hidden, hidden] and of `bias` are q | k | v."""

    probe: Values
    weight: Values
    bias: Values
    output: Dense
    heads: int
    norm: Norm
    feed_forward: FeedForward


@dataclass(frozen=True)
class CosineLogits:
    """exp(scale) * cosine + bias for an image and a text; both are tensors of one element."""

    scale: Values
    bias: Values | None = None


@dataclass(frozen=True)
class Head:
    """An optional norm and dense layers, applied to one pooled row per sequence, or to every row if
    `pooling` is None. `soft_cap`: the output y becomes soft_cap * tanh(y / soft_cap); 0: none.
    `logits`: for embeddings of texts, how they are compared with those of images."""

    pooling: str | AttentionPooling | None  # as in `kernels.pool`, or in `BuiltImageHead`
    chain: tuple[Dense, ...]
    soft_cap: float = 0.0
    norm: Norm | None = None
    logits: CosineLogits | None = None


@dataclass(frozen=True)
class Blueprint:
    """A stack with its heads, and the names of their tensors in a checkpoint. For an
    encoder-decoder model `stack` is the decoder and `encoder` the encoder."""

    prefix: str
    stack: Stack
    # By task; "pooler" is the tanh layer at the end of some base models.
    task_heads: Mapping[str, Head]
    unread: tuple[str, ...]  # name prefixes of known tensors that need not be read
    aliases: Mapping[str, str]  # tied tensors: name -> the name that is stored
    eos_token_ids: tuple[int, ...] = ()
    encoder: Stack | None = None
    target: TargetTokens | None = None  # of an encoder-decoder model

    @property
    def hidden_size(self) -> int:
        return self.stack.hidden_size

    @property
    def max_length(self) -> int:
        return self.stack.max_length

    def encoder_alone(self) -> Blueprint:
        """Returns the encoder of an encoder-decoder model, for tasks that use its hidden states."""
        assert self.encoder is not None
        return Blueprint(
            prefix=self.prefix,
            stack=self.encoder,
            task_heads={},
            unread=(*self.unread, "decoder.", "lm_head.", "final_logits_bias"),
            aliases=self.aliases,
        )

    def tensors(self, head: str | None) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of all tensors of the stacks and one head."""
        head_or_none = self.task_heads[head] if head is not None else None
        return tensors_of(self.stack, self.encoder, head_or_none)
