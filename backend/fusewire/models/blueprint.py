"""What an architecture file states: the parts of a model, their sizes, and their weight names.

A blueprint is data. `layer_builder.py` builds its layers and `stack.py` runs them, so an
architecture is added by writing one function from config.json to a Blueprint. Names are relative to
the base model (no `bert.` in front); heads keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fusewire.models.rope import Rope
from fusewire.models.target_tokens import TargetTokens


@dataclass(frozen=True)
class Table:
    """An embedding table [rows, columns]; `name` is the tensor's.

    The tensor has `skipped` rows more, in front, which nothing looks up (OPT's positions).
    """

    name: str
    rows: int
    columns: int
    skipped: int = 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self.skipped + self.rows, self.columns)}


@dataclass(frozen=True)
class Sinusoids:
    """Fixed positions [rows, columns] that no checkpoint has to hold (`positions.sinusoids`); the
    table has `skipped` rows more, in front, which nothing looks up. `padding_index`: the table is
    tensor2tensor's, with zeros in this row (M2M-100)."""

    rows: int
    columns: int
    skipped: int = 0
    padding_index: int | None = None


@dataclass(frozen=True)
class Norm:
    """A norm over `size` features: `name`.weight and, unless absent, `name`.bias.

    `one_plus`: what is stored is the weight's difference from 1 (Gemma). `scale`: factor of what
    is stored.
    """

    name: str
    size: int
    eps: float
    bias: bool = True
    one_plus: bool = False
    kind: str = "layer_norm"  # or rms_norm
    scale: float = 1.0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        kinds = ("weight", "bias") if self.bias else ("weight",)
        return {f"{self.name}.{kind}": (self.size,) for kind in kinds}


@dataclass(frozen=True)
class Values:
    """A tensor that is no table, norm or matrix, of any shape."""

    name: str
    shape: tuple[int, ...]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self.name: self.shape}


@dataclass(frozen=True)
class Dense:
    """y = norm(activation(x W^T + b)). Several names are stacked by rows (query, key, value).

    `transposed`: stored as [inputs, outputs] (GPT-2). `by_head`: how many heads it has, where it is
    stored head by head, q | k | v within a head (GPT-NeoX). `averaged`: x is the inputs of all
    names side by side, y the mean of what each gives (DeiT). `row_scale`: the tensor with a factor
    for each output (DINOv2), empty for none. `weight_scale` and `bias_scale`: factors of what is
    stored. `bias_row`: the bias is this tensor [1, outputs] (BART's final_logits_bias). `unbiased`:
    names that have no bias beside others that have one (Whisper's keys).
    """

    names: tuple[str, ...]
    inputs: int
    outputs: int  # of all names together
    bias: bool = True
    activation: str = "none"
    norm: Norm | None = None
    rows: tuple[int, ...] = ()  # of each name; empty: all have the same
    transposed: bool = False
    by_head: int = 0
    averaged: bool = False
    row_scale: str = ""
    weight_scale: float = 1.0
    bias_scale: float = 1.0
    bias_row: str = ""
    unbiased: tuple[str, ...] = ()

    def tensors(self) -> dict[str, tuple[int, ...]]:
        count = len(self.names)
        inputs = self.inputs // count if self.averaged else self.inputs
        rows = self.rows or (self.outputs if self.averaged else self.outputs // count,) * count
        shapes: dict[str, tuple[int, ...]] = {}
        if self.row_scale:
            shapes[self.row_scale] = (self.outputs,)
        for name, count in zip(self.names, rows, strict=True):
            shape = (count, inputs)
            shapes[f"{name}.weight"] = shape[::-1] if self.transposed else shape
            if self.bias and not self.bias_row and name not in self.unbiased:
                shapes[f"{name}.bias"] = (count,)
        if self.bias_row:
            shapes[self.bias_row] = (1, self.outputs)
        return shapes


@dataclass(frozen=True)
class Embeddings:
    """projection(norm(scale * word + position + token type)), without the parts that are None.

    `word_projection` is applied to the rows of the word table, once, when they are loaded; so is
    `word_norm`.
    `padding_index`: positions count from here + 1, skipping this id (RoBERTa).
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
        # No kernel adds token types to words that it scales, or does not norm.
        assert self.token_type is None or (self.norm is not None and self.scale == 1)

    @property
    def words_as_stored(self) -> bool:
        """Whether the table of words is the tensor as it is, which others may share."""
        return self.word_projection is None and self.word_norm is None and not self.word.skipped


@dataclass(frozen=True)
class Patches:
    """norm(projection of each patch + bias + position), behind the tokens of `leading`, which have
    positions too: the input block of images.

    A patch is [channels, size, size] pixels, projection [hidden, channels, size, size], position a
    row for each of the leading tokens and of the patches of `grid`, (rows, columns).
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
    """gelu(y) of a convolution over time: weight [outputs, inputs, 3] and its bias. Of the frames
    every `stride`th is the middle of a window, in front of the first and behind the last are
    zeros."""

    weight: Values
    bias: Values
    stride: int = 1


@dataclass(frozen=True)
class Frames:
    """The convolutions, one after the other, + position: the input block of sound, whose `frames`
    have `bins` numbers each. As many rows come out of it as `position` has."""

    frames: int
    bins: int
    convolutions: tuple[Convolution, ...]
    position: Table


@dataclass(frozen=True)
class PositionBias:
    """Added to the scores, by the bucket of a distance (`positions.relative_buckets`): `table` is
    [buckets, heads]. Distances of `max_distance` and more share a bucket. `causal`: all buckets are
    for keys before the query."""

    table: Table
    max_distance: int = 128
    causal: bool = False


@dataclass(frozen=True)
class Attention:
    """Self-attention. qkv rows are q | k | v.

    A token sees those up to `left` before and `right` behind it, None for all: right = 0 is causal.
    `scale` of the scores, 0 for 1 / sqrt(head_dim); `soft_cap` of the scores, 0 for none. `q_norm`,
    `k_norm`: of each head, before it is rotated.
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
        """Numbers of a token's keys, and of its values."""
        return (self.qkv.outputs - self.output.inputs) // 2


@dataclass(frozen=True)
class CrossAttention:
    """Attention of a decoder's tokens to all of their source, behind the self-attention of a layer.

    kv rows are k | v, made of the encoder's output, as many as the self-attention's: both lie in
    the same planes of a cache. `scale` of the scores, 0 for 1 / sqrt(head_dim).
    """

    q: Dense
    kv: Dense
    output: Dense
    heads: int
    scale: float = 0.0


@dataclass(frozen=True)
class FeedForward:
    """output(activation(intermediate(x))); gated: rows of intermediate are gate | up."""

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
    """Blocks in order; `parallel`: all read the layer's input. Equal layers are built once (ALBERT
    shares its weights)."""

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
    """An encoder or a decoder below its heads. `outgrows_float16`: its hidden states can be larger
    than 65504."""

    hidden_size: int
    max_length: int  # positions
    embeddings: Embeddings | Patches | Frames
    layers: tuple[Layer, ...]
    final_norm: Norm | None = None
    outgrows_float16: bool = False

    @property
    def attentions(self) -> list[Attention]:
        return [attention for layer in self.layers for attention in layer.attentions]

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        return [attention for layer in self.layers for attention in layer.cross_attentions]


@dataclass(frozen=True)
class AttentionPooling:
    """y + feed_forward(norm(y)) for each sequence, where y = output(attention) of one learned
    query, `probe` [1, 1, hidden], to all of its tokens (SigLIP). Rows of `weight` [3 hidden,
    hidden] and of `bias` are q | k | v."""

    probe: Values
    weight: Values
    bias: Values
    output: Dense
    heads: int
    norm: Norm
    feed_forward: FeedForward


@dataclass(frozen=True)
class CosineLogits:
    """exp(scale) * cosine + bias for an image and a text: tensors of one number each."""

    scale: Values
    bias: Values | None = None


@dataclass(frozen=True)
class Head:
    """A norm, where there is one, and dense layers over one pooled row a sequence, or over every
    row where `pooling` is None. `soft_cap`: what they give becomes soft_cap * tanh(y / soft_cap);
    0: it stays. `logits`: of embeddings of texts, how they are compared with those of images."""

    pooling: str | AttentionPooling | None  # of `kernels.pool`, or of `BuiltImageHead`
    chain: tuple[Dense, ...]
    soft_cap: float = 0.0
    norm: Norm | None = None
    logits: CosineLogits | None = None


@dataclass(frozen=True)
class Blueprint:
    """A stack with its heads, and where a checkpoint has them. Of an encoder-decoder model the
    stack is the decoder, beside its `encoder`."""

    prefix: str
    stack: Stack
    # By task; "pooler" is the tanh layer some base models end with.
    task_heads: Mapping[str, Head]
    unread: tuple[str, ...]  # name prefixes of tensors that are known, and left out where not read
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
        """The encoder of an encoder-decoder model, for tasks that read its hidden states."""
        assert self.encoder is not None
        return Blueprint(
            prefix=self.prefix,
            stack=self.encoder,
            task_heads={},
            unread=(*self.unread, "decoder.", "lm_head.", "final_logits_bias"),
            aliases=self.aliases,
        )

    def tensors(self, head: str | None) -> dict[str, tuple[int, ...]]:
        """Every tensor the stacks and one head read, with its shape."""
        head_or_none = self.task_heads[head] if head is not None else None
        return tensors_of(self.stack, self.encoder, head_or_none)


def tensors_of(*roots: Any) -> dict[str, tuple[int, ...]]:
    """Every tensor of the parts below `roots`, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts_of(roots):
        shapes.update(part.tensors())
    return shapes


def parts_of(node: Any) -> Iterator[Table | Norm | Dense | Values]:
    """The parts below a part or a tuple of parts, each as often as it occurs."""
    if isinstance(node, (Table, Norm, Dense, Values)):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from parts_of(item)
    elif is_dataclass(node):
        for field in fields(node):
            yield from parts_of(getattr(node, field.name))
