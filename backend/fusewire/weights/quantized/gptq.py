"""GPTQ and AWQ: 4-bit weights with a zero point and a scale per group of inputs.

Both store the transposed weight. qweight is [in_features / codes per word, out_features] in GPTQ
(the layout of AutoGPTQ and GPTQModel, and of AutoRound's exports) and [in_features, out_features /
8] in AWQ (AutoAWQ, version "gemm"). qzeros are [groups, out_features / codes per word], scales
[groups, out_features]. Transposed back, both are codes of [out_features, in_features].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.weights.quantized.module import SCALES, WHOLE, Module
from fusewire.weights.quantized.settings import Settings
from fusewire.weights.quantized.weight import (
    Codes,
    QuantizedWeight,
    equal_groups,
    whole_numbers,
)

_I32 = ("I32",)
# The nibble of column k in an AWQ word, counted from the lowest.
_AWQ_LANES = (0, 4, 1, 5, 2, 6, 3, 7)


class Gptq:
    """quant_method gptq, and auto-round with the same packing."""

    parts = frozenset({"qweight", "qzeros", "scales", "g_idx"})
    unneeded: frozenset[str] = frozenset()
    input_scales: tuple[str, ...] = ()

    def __init__(self, settings: Settings, model_type: Any, version: str) -> None:
        """`version`: of the packing, gptq or gptq_v2, if the settings do not name it."""
        self._bits = settings.choice("bits", (2, 4, 8))
        self._group_size = settings.group_size("group_size")
        self._act_order = settings.choice("desc_act", (False, True), False)
        settings.choice("sym", (False, True), True)
        settings.choice("pack_dtype", ("int32",), "int32")
        key = "checkpoint_format" if "checkpoint_format" in settings.values else "format"
        version = settings.choice(key, ("gptq", "gptq_v2"), version)
        # Added to the words of qzeros: version 1 stores each code less 1, with borrows.
        ones = sum(1 << at for at in range(0, 32, self._bits))
        self._stored_less = np.uint32(ones if version == "gptq" else 0)
        settings.absent("rotation", "adapter", "is_marlin_format")
        _check_exceptions(settings)
        self._model_type = model_type

    def transposed(self, module: Module) -> bool:
        return module.is_conv1d(self._model_type)

    def shape(self, module: Module) -> tuple[int, int]:
        """Returns [out_features, in_features]. Raises CheckpointError if parts are missing or do
        not fit."""
        count = 32 // self._bits
        words, outputs = module.part("qweight", _I32).shape
        inputs = words * count
        groups = _groups(inputs, self._group_size)
        if outputs % count:
            raise module.fault("qweight", [words, outputs], f"a multiple of {count} columns")
        module.part("qzeros", _I32, (groups, outputs // count))
        module.part("scales", SCALES, (groups, outputs))
        if self._act_order or "g_idx" in module:
            module.part("g_idx", WHOLE, (inputs,))
        return outputs, inputs

    def weight(self, module: Module) -> QuantizedWeight:
        outputs, inputs = self.shape(module)
        scales = module.scales("scales", negative=True).T  # AutoRound's may be negative
        groups = equal_groups(inputs, self._group_size or inputs)
        if "g_idx" in module:
            stored = module.groups("g_idx", scales.shape[1])
            if not self._act_order and not np.array_equal(stored, groups):
                raise module.fault("g_idx", "an order", "columns in order, as desc_act is false")
            groups = stored
        grid = (outputs, scales.shape[1])
        words = module.words("qzeros") + self._stored_less  # modulo 2 ** 32, as in GPTQModel
        zeros = Codes(words.T, grid, self._bits, axis=0).all()
        return QuantizedWeight(
            Codes(module.words("qweight").T, (outputs, inputs), self._bits),
            whole_numbers(self._bits),
            np.ascontiguousarray(scales),
            zeros.astype(np.float32),
            1,
            groups,
        )


class Awq:
    """quant_method awq."""

    parts = frozenset({"qweight", "qzeros", "scales"})
    unneeded: frozenset[str] = frozenset()
    input_scales: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        bits = "bits" if "bits" in settings.values else "w_bit"
        settings.choice(bits, (4,))
        group_size = "group_size" if "group_size" in settings.values else "q_group_size"
        self._group_size = settings.group_size(group_size)
        settings.choice("zero_point", (True,), True)
        version = "format" if "version" not in settings.values else "version"  # as transformers
        settings.choice(version, ("gemm", "GEMM"), "gemm")
        settings.names("modules_to_not_convert")
        _check_exceptions(settings)

    def transposed(self, module: Module) -> bool:
        return False

    def shape(self, module: Module) -> tuple[int, int]:
        """Returns [out_features, in_features]. Raises CheckpointError if parts are missing or do
        not fit."""
        inputs, words = module.part("qweight", _I32).shape
        groups = _groups(inputs, self._group_size)
        module.part("qzeros", _I32, (groups, words))
        module.part("scales", SCALES, (groups, words * 8))
        return words * 8, inputs

    def weight(self, module: Module) -> QuantizedWeight:
        outputs, inputs = self.shape(module)
        scales = module.scales("scales", negative=True).T
        grid = (outputs, scales.shape[1])
        zeros = Codes(module.words("qzeros").T, grid, 4, 0, _AWQ_LANES).all()
        return QuantizedWeight(
            Codes(module.words("qweight").T, (outputs, inputs), 4, 0, _AWQ_LANES),
            whole_numbers(4),
            np.ascontiguousarray(scales),
            zeros.astype(np.float32),
            1,
            equal_groups(inputs, self._group_size or inputs),
        )


def _groups(inputs: int, size: int) -> int:
    return -(-inputs // (size or inputs))


def _check_exceptions(settings: Settings) -> None:
    """Raises CheckpointError if some modules are quantised differently from the rest: GPTQModel's
    `dynamic` (a pattern with a minus names modules that are not quantised) and AutoRound's
    `extra_config` (16 bits or more: not quantised; a quantised head is named with the settings that
    all have)."""
    dynamic = settings.values.get("dynamic") or {}
    if not isinstance(dynamic, dict) or not all(key.startswith("-:") for key in dynamic):
        raise settings.fault("dynamic", "patterns of modules that are not quantised (`-:`)")
    extra = settings.values.get("extra_config") or {}
    of_all = {"data_type": "int"} | dict(settings.values)
    if not isinstance(extra, dict) or not all(
        isinstance(each, dict) and (_is_plain(each) or _is_like(each, of_all))
        for each in extra.values()
    ):
        wanted = "modules of 16 bits or more, or with the bits and group_size of all others"
        raise settings.fault("extra_config", wanted)


def _is_plain(module: dict[str, Any]) -> bool:
    return type(module.get("bits")) is int and module["bits"] >= 16


def _is_like(module: dict[str, Any], of_all: dict[str, Any]) -> bool:
    """Whether weights are stored in the same way; symmetric ones have zero points too."""
    keys = ("bits", "group_size", "data_type")
    return all(module[key] == of_all.get(key) for key in keys if key in module)
