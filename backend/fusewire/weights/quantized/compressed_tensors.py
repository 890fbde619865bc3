"""compressed-tensors (llm-compressor): weights in int8, FP8 E4M3 or packed into int32.

`int-quantized`, `float-quantized` and `naive-quantized` store `weight` [out_features, in_features]
in bytes, also for a Conv1D. `pack-quantized` stores `weight_packed` [out_features, ceil(in_features
/ codes per word)], whose codes count up from -2 ** (bits - 1), and `weight_shape`. `weight_scale`
(and `weight_zero_point`, packed by rows if weights are packed) has one element for the tensor, for
each row, for each group of columns in each row, or for each block; `weight_g_idx` is the group of
each column if columns are ordered by activations.

The quantisation of activations does not change a weight. Weights are meant for int8 or FP8 products
(W8A8) if activations are quantised to the same 8-bit type per token, symmetrically and with dynamic
scales. FP8 weights are meant for them also if activations have one `input_scale` (static), or if
weights have blocks of 128 x 128 and activations dynamic scales per 128 inputs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.weights.quantized.module import SCALES, WHOLE, Module
from fusewire.weights.quantized.settings import Settings, fault
from fusewire.weights.quantized.targets import check_target, is_class, is_pattern, matches
from fusewire.weights.quantized.weight import (
    BLOCK,
    BLOCKS,
    Codes,
    QuantizedWeight,
    equal_groups,
    float8_e4m3,
    twos_complement,
    whole_numbers,
)

_PACKED = "pack-quantized"
_FORMATS = ("int-quantized", "float-quantized", "naive-quantized", _PACKED)
_TABLE = re.compile(r"(\b(wte|wpe|shared|embed_(in|tokens|positions))|_embeddings?)$")


@dataclass(frozen=True)
class _Scheme:
    """How the weights of one group of modules are quantised."""

    targets: tuple[str, ...]
    packed: bool
    bits: int
    is_float: bool
    symmetric: bool
    ordered: bool  # by activations, with a weight_g_idx
    strategy: str
    products: str | None  # as in QuantizedWeight
    static: bool  # products take the input_scale
    group_size: int = 0
    block: tuple[int, int] = (0, 0)

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Returns the numbers of rows and columns that share a scale."""
        by_strategy = {
            "tensor": (rows, columns),
            "channel": (1, columns),
            "group": (1, self.group_size),
            "block": self.block,
        }
        return by_strategy[self.strategy]


class CompressedTensors:
    """quant_method compressed-tensors."""

    parts = frozenset(
        {
            "weight",
            "weight_packed",
            "weight_shape",
            "weight_scale",
            "weight_zero_point",
            "weight_g_idx",
        }
    )
    unneeded = frozenset(
        f"{of}_{what}" for of in ("input", "output") for what in ("scale", "zero_point")
    ) | frozenset(f"{of}_{what}" for of in "qkv" for what in ("scale", "zero_point"))
    input_scales = ("input_scale",)

    def __init__(self, settings: Settings, model_type: Any) -> None:
        self._model_type = model_type
        settings.absent("transform_config")
        if settings.values.get("sparsity_config"):
            settings.section("sparsity_config").choice("format", ("dense", None))
        groups = settings.section("config_groups")
        if not groups.values and not settings.values.get("kv_cache_scheme"):
            raise settings.fault("config_groups", "a group of modules")
        named = [groups.section(key) for key in groups.values]
        # A group whose `weights` is null is for activations only, such as those of attentions.
        of_weights = [each for each in named if each.values.get("weights", {}) is not None]
        self._schemes = [_scheme(each, settings) for each in of_weights]
        self._ignore = settings.names("ignore")
        for pattern in (*self._ignore, *(t for s in self._schemes for t in s.targets)):
            check_target(pattern, settings)

    def transposed(self, module: Module) -> bool:
        return module.is_conv1d(self._model_type)

    def shape(self, module: Module) -> tuple[int, int]:
        """Returns [out_features, in_features]. Raises CheckpointError if parts are missing or do
        not fit."""
        scheme = self._scheme_of(module)
        rows, columns = _packed_shape(module, scheme) if scheme.packed else _shape(module, scheme)
        block = scheme.blocks(rows, columns)
        grid = (-(-rows // block[0]), -(-columns // block[1]))
        shapes = {"tensor": ((), (1,), (1, 1)), "channel": ((rows, 1), (rows,))}
        allowed = shapes.get(scheme.strategy, (grid,))
        module.part("weight_scale", SCALES, *allowed)
        if "weight_zero_point" in module or not scheme.symmetric:
            if scheme.packed and not scheme.symmetric:
                words = -(-rows * scheme.bits // 32)
                module.part("weight_zero_point", ("I32",), (words, grid[1]))
            elif not scheme.symmetric:
                module.part("weight_zero_point", ("I8",), *allowed)
            else:  # older versions store zeros, whose type and shape do not matter
                _check_zeros(module)
        if scheme.ordered:
            module.part("weight_g_idx", WHOLE, (columns,))
        if scheme.static:
            module.input_scale(*self.input_scales)
        return rows, columns

    def weight(self, module: Module) -> QuantizedWeight:
        rows, columns = self.shape(module)
        scheme = self._scheme_of(module)
        block_rows, block_columns = scheme.blocks(rows, columns)
        grid = (-(-rows // block_rows), -(-columns // block_columns))
        groups = equal_groups(columns, block_columns)
        if scheme.ordered:
            groups = module.groups("weight_g_idx", grid[1])
        if scheme.packed:
            codes = Codes(module.words("weight_packed"), (rows, columns), scheme.bits)
            values = whole_numbers(scheme.bits, 1 << scheme.bits - 1)
        elif scheme.is_float:
            codes, values = module.float8("weight", (rows, columns)), float8_e4m3()
        else:
            whole = module.parts["weight"].data.reshape(rows, columns)
            codes, values = Codes(whole, (rows, columns), 8), twos_complement()
            if scheme.bits == 4:  # in two's complement too
                module.check_4_bits("weight")
                codes, values = Codes(whole, (rows, columns), 4, offset=8), whole_numbers(4, 8)
        return QuantizedWeight(
            codes,
            values,
            # Those of AutoRound's integers may be negative.
            module.scales("weight_scale", negative=not scheme.is_float).reshape(grid),
            None if scheme.symmetric else _zeros(module, scheme, grid),
            block_rows,
            groups,
            scheme.products,
            module.input_scale(*self.input_scales) if scheme.static else 0.0,
        )

    def _scheme_of(self, module: Module) -> _Scheme:
        name = module.name
        if any(matches(name, each) for each in self._ignore):
            raise module.fault(
                next(iter(module.parts)), "a quantised module", "none, as `ignore` names it"
            )
        # As in compressed-tensors: names take precedence over patterns, which are sorted.
        found = [
            (is_pattern(each), each, s)
            for s in self._schemes
            for each in s.targets
            if matches(name, each)
        ]
        named = [s for _, _, s in sorted(found, key=lambda match: match[:2])]
        # Other targets are classes of modules. In a folder, tables are recognised by their names.
        by_class = [s for s in self._schemes if any(is_class(each) for each in s.targets)]
        own = "Embedding" if _TABLE.search(name) else "Linear"
        schemes = named[:1] or [s for s in by_class if own in s.targets] or by_class
        if len(schemes) != 1:
            raise fault(
                "quantization_config.config_groups",
                f"{len(schemes)} groups for {name}",
                "targets that choose one group for each quantised module",
            )
        return schemes[0]


def _scheme(group: Settings, settings: Settings) -> _Scheme:
    own = group.values.get("format") is not None
    packed = (group if own else settings).choice("format", _FORMATS) == _PACKED
    weights = group.section("weights")
    kind = weights.choice("type", ("int",) if packed else ("int", "float"), "int")
    # In int-quantized, 4-bit codes take a byte each too.
    bits = weights.choice("num_bits", (2, 4, 8) if packed else (4, 8) if kind == "int" else (8,))
    strategies = ("channel", "group") if packed else ("channel", "group", "tensor", "block")
    strategy = weights.choice("strategy", strategies, _default(weights))
    symmetric = weights.choice("symmetric", (True, False), True)
    weights.choice("dynamic", (False,), False)
    if not symmetric and kind == "float":
        raise weights.fault("symmetric", "True for float weights")
    actorder = weights.choice(
        "actorder", (None, False, True, "group", "weight", "static", "dynamic")
    )
    ordered = actorder in (True, "group", "dynamic")  # "static", "weight": columns stay in order
    if ordered and strategy != "group":
        raise weights.fault("actorder", f"null for weights by {strategy}")
    block = weights.sizes("block_structure") if strategy == "block" else (0, 0)
    activations = group.values.get("input_activations")
    static = not packed and kind == "float" and _is(activations, kind, "tensor", dynamic=False)
    return _Scheme(
        tuple(group.names("targets")),
        packed,
        bits,
        kind == "float",
        symmetric,
        ordered,
        strategy,
        "float8_e4m3" if static else None if packed else _products(kind, block, activations),
        static,
        weights.size("group_size") if strategy == "group" else 0,
        block,
    )


def _products(kind: str, block: tuple[int, int], activations: Any) -> str | None:
    """Returns the format of weights of this kind for 8-bit products, if activations are quantised
    to it dynamically as these products do it, else None."""
    if block == (BLOCK, BLOCK) and kind == "float":
        by_block = _is(activations, kind, "group", dynamic=True)
        return BLOCKS if by_block and activations.get("group_size") == BLOCK else None
    by_token = _is(activations, kind, "token", dynamic=True)
    return {"int": "int8", "float": "float8_e4m3"}[kind] if by_token else None


def _is(activations: Any, kind: str, strategy: str, *, dynamic: bool) -> bool:
    """Whether activations are quantised like this, to 8 bits and symmetrically."""
    wanted = {"num_bits": 8, "type": kind, "strategy": strategy}
    return (
        isinstance(activations, Mapping)
        and all(activations.get(key) == value for key, value in wanted.items())
        and activations.get("dynamic", False) is dynamic
        and activations.get("symmetric", True) is True
    )


def _default(weights: Settings) -> str:
    """Returns compressed-tensors' strategy where none is given: by the group size."""
    size = weights.values.get("group_size")
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _shape(module: Module, scheme: _Scheme) -> tuple[int, int]:
    module.only("weight", "weight_scale", "weight_zero_point", "input_scale", *_order(scheme))
    rows, columns = module.part("weight", ("F8_E4M3" if scheme.is_float else "I8",)).shape
    return rows, columns


def _packed_shape(module: Module, scheme: _Scheme) -> tuple[int, int]:
    module.only(
        "weight_packed",
        "weight_shape",
        "weight_scale",
        "weight_zero_point",
        "input_scale",
        *_order(scheme),
    )
    stored = module.part("weight_packed", ("I32",))
    module.part("weight_shape", WHOLE, (2,))
    rows, columns = (int(size) for size in module.integers("weight_shape"))
    words = math.ceil(columns * scheme.bits / 32) if 0 < columns < 1 << 31 else 0
    if stored.shape != (rows, words):
        raise module.fault("weight_packed", list(stored.shape), f"{[rows, words]} by weight_shape")
    return rows, columns


def _order(scheme: _Scheme) -> tuple[str, ...]:
    return ("weight_g_idx",) if scheme.ordered else ()


def _zeros(module: Module, scheme: _Scheme, grid: tuple[int, int]) -> NDArray[np.float32]:
    if not scheme.packed:
        if scheme.bits == 4:
            module.check_4_bits("weight_zero_point")
        return module.integers("weight_zero_point").astype(np.float32).reshape(grid)
    codes = Codes(module.words("weight_zero_point"), grid, scheme.bits, axis=0).all()
    return codes.astype(np.float32) - np.float32(1 << scheme.bits - 1)


def _check_zeros(module: Module) -> None:
    if module.parts["weight_zero_point"].data.any():
        raise module.fault("weight_zero_point", "other than zeros", "zeros for symmetric weights")
