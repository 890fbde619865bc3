"""The weights of a blueprint as checkpoints store them: tables, norms and matrices, with the names
and shapes of their tensors. Names are relative to the base model (without `bert.` in front); heads
have full names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """An embedding table [rows, columns] that is stored as the tensor `name`.

    The tensor begins with `skipped` further rows that are never looked up (OPT's positions).
    """

    name: str
    rows: int
    columns: int
    skipped: int = 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self.name: (self.skipped + self.rows, self.columns)}


@dataclass(frozen=True)
class Norm:
    """A norm over `size` features: `name`.weight and, with `bias`, `name`.bias.

    `one_plus`: the stored tensor is the weight's difference from 1 (Gemma). `scale`: a factor of
    the weight.
    """

    name: str
    size: int
    eps: float
    bias: bool = True
    one_plus: bool = False
    kind: str = "layer_norm"  # or "rms_norm"
    scale: float = 1.0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        kinds = ("weight", "bias") if self.bias else ("weight",)
        return {f"{self.name}.{kind}": (self.size,) for kind in kinds}


@dataclass(frozen=True)
class Values:
    """A tensor of any shape that is not a table, norm or matrix."""

    name: str
    shape: tuple[int, ...]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self.name: self.shape}


@dataclass(frozen=True)
class Dense:
    """y = norm(activation(x W^T + b)). Several names are stacked by rows (query, key, value).

    `transposed`: stored as [inputs, outputs] (GPT-2). `by_head`: the number of heads if rows are
    stored head by head, q | k | v within a head (GPT-NeoX), else 0. `averaged`: x is the
    concatenated inputs of all names, y the mean of their outputs (DeiT). `row_scale`: name of the
    tensor with a factor per output (DINOv2), empty for none. `weight_scale` and `bias_scale`:
    factors of the stored tensors. `bias_row`: the bias is this tensor [1, outputs] (BART's
    final_logits_bias). `unbiased`: names without a bias beside others that have one (Whisper's
    keys).
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


def tensors_of(*roots: Any) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of all tensors of the parts below `roots`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts_of(roots):
        shapes.update(part.tensors())
    return shapes


def parts_of(node: Any) -> Iterator[Table | Norm | Dense | Values]:
    """Yields the parts below a part or a tuple of parts, each as often as it occurs."""
    if isinstance(node, (Table, Norm, Dense, Values)):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from parts_of(item)
    elif is_dataclass(node):
        for field in fields(node):
            yield from parts_of(getattr(node, field.name))
