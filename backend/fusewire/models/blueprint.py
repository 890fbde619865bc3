"""What an architecture file states: the parts of an encoder, their sizes, and their weight names.

A blueprint is data. `encoder.py` reads it to check a checkpoint, build the layers and run them, so
an architecture is added by writing one function from config.json to a Blueprint. Names are
relative to the base model (no `bert.` in front); heads keep theirs. Decoders are made of the same
parts (`decoder_blueprint.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


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
class Norm:
    """A norm over `size` features: `name`.weight and, unless absent, `name`.bias.

    `one_plus`: what is stored is the weight's difference from 1 (Gemma).
    """

    name: str
    size: int
    eps: float
    bias: bool = True
    one_plus: bool = False

    def tensors(self) -> dict[str, tuple[int, ...]]:
        kinds = ("weight", "bias") if self.bias else ("weight",)
        return {f"{self.name}.{kind}": (self.size,) for kind in kinds}


@dataclass(frozen=True)
class Dense:
    """y = norm(activation(x W^T + b)). Several names are stacked by rows (query, key, value).

    `transposed`: stored as [inputs, outputs] (GPT-2). `by_head`: stored with the rows of each of
    so many heads together, q | k | v within a head (GPT-NeoX).
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

    def tensors(self) -> dict[str, tuple[int, ...]]:
        rows = self.rows or (self.outputs // len(self.names),) * len(self.names)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, count in zip(self.names, rows, strict=True):
            shape = (count, self.inputs)
            shapes[f"{name}.weight"] = shape[::-1] if self.transposed else shape
            if self.bias:
                shapes[f"{name}.bias"] = (count,)
        return shapes


@dataclass(frozen=True)
class Embeddings:
    """norm(word + position + token type), then a projection where embeddings are narrower."""

    word: Table
    position: Table | None
    token_type: Table | None
    norm: Norm
    projection: Dense | None = None


@dataclass(frozen=True)
class Layer:
    """One encoder layer. Equal layers are built once (ALBERT shares its weights).

    `window`: attend where |i - j| <= window, 0 for everywhere. `rope_theta`: base of the rotary
    embedding (Su et al., 2021), None without one.
    """

    qkv: Dense
    attention_output: Dense
    attention_norm: Norm | None
    intermediate: Dense
    output: Dense
    output_norm: Norm
    window: int = 0
    rope_theta: float | None = None


@dataclass(frozen=True)
class Head:
    """Dense layers over one pooled row a sequence, or over every row where `pooling` is None."""

    pooling: str | None  # "cls", "mean" or None
    chain: tuple[Dense, ...]


@dataclass(frozen=True)
class Blueprint:
    """An encoder and its heads (by task; "pooler" is the tanh layer some base models end with)."""

    prefix: str
    hidden_size: int
    heads: int
    activation: str
    norm_eps: float
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    max_length: int
    task_heads: Mapping[str, Head]
    other_heads: tuple[str, ...]  # name prefixes of tensors that a task may leave unread
    aliases: Mapping[str, str]  # tied tensors: name -> the name that is stored
    padding_index: int | None = None  # positions count from here + 1, skipping this id (RoBERTa)
    relative_bias: Table | None = None  # [buckets, heads]: bias by distance (MPNet)
    pre_norm: bool = False
    gated: bool = False
    final_norm: Norm | None = None

    def tensors(self, head: str | None) -> dict[str, tuple[int, ...]]:
        """Every tensor the encoder and one head read, with its shape."""
        roots = [self.embeddings, self.layers, self.relative_bias, self.final_norm]
        return tensors_of(*roots, self.task_heads[head] if head is not None else None)


def tensors_of(*roots: Any) -> dict[str, tuple[int, ...]]:
    """Every tensor of the parts below `roots`, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in _parts(roots):
        shapes.update(part.tensors())
    return shapes


def _parts(node: Any) -> Iterator[Table | Norm | Dense]:
    if isinstance(node, (Table, Norm, Dense)):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from _parts(item)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _parts(getattr(node, field.name))
