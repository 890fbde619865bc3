"""Reads quantised checkpoints, in the formats that they are published in, as plain weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fusewire.errors import CheckpointError
from fusewire.weights.quantized.methods import Method, method_of
from fusewire.weights.quantized.module import Module, QuantizedTensor
from fusewire.weights.quantized.weight import (
    BLOCKS,
    Codes,
    Int4,
    QuantizedWeight,
    StoredCodes,
    joined,
)
from fusewire.weights.safetensors import StoredTensor

__all__ = [
    "BLOCKS",
    "Codes",
    "Int4",
    "Method",
    "QuantizedTensor",
    "QuantizedWeight",
    "StoredCodes",
    "joined",
    "method_of",
    "with_weights",
]


def with_weights(
    tensors: Mapping[str, StoredTensor], method: Method
) -> dict[str, StoredTensor | QuantizedTensor]:
    """Returns the tensors with `X.weight` in place of the stored parts of each quantised module X,
    and without tensors that only activations need which are not quantised here. Raises
    CheckpointError if a module lacks a part, or has one of a wrong type or shape."""
    plain: dict[str, StoredTensor | QuantizedTensor] = {}
    modules: dict[str, dict[str, StoredTensor]] = {}
    inputs: dict[str, dict[str, StoredTensor]] = {}  # by module, which need not be quantised
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part in method.parts:
            modules.setdefault(module, {})[part] = tensor
        elif part in method.unneeded:
            _check_unneeded(name, tensor)
            if part in method.input_scales:
                inputs.setdefault(module, {})[part] = tensor
        else:
            plain[name] = tensor
    for owner, parts in modules.items():
        if parts.keys() == {"weight"} and parts["weight"].is_float:
            plain[f"{owner}.weight"] = parts["weight"]  # not quantised
            continue
        if f"{owner}.weight" in plain:
            file = tensors[f"{owner}.weight"].file
            raise CheckpointError(
                f"{file}: tensor '{owner}.weight': got it beside {', '.join(sorted(parts))}, "
                "wanted one of both; download the folder again"
            )
        stored = Module(owner, parts | inputs.get(owner, {}))
        transposed = method.transposed(stored)
        shape = method.shape(stored)
        plain[f"{owner}.weight"] = QuantizedTensor(
            stored, shape[::-1] if transposed else shape, partial(method.weight, stored), transposed
        )
    return plain


def _check_unneeded(name: str, tensor: StoredTensor) -> None:
    """Checks a scale of activations that are not quantised here: it is not needed, but a wrong one
    shows that the file is damaged."""
    if name.endswith("_scale"):
        numbers = tensor.float32(name)
        if not (np.isfinite(numbers) & (numbers > 0)).all():
            raise CheckpointError(
                f"{tensor.file}: tensor {name!r}: got {numbers.min()}, wanted finite and greater "
                "than 0; download the folder again"
            )
