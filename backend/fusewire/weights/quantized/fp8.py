"""quant_method fp8: E4M3 weights with a scale per block (DeepSeek-V3, arXiv 2412.19437, section
3.3; Qwen3) or per tensor, which may be stored as an exponent of 2 (scale_fmt ue8m0 of
transformers). Despite its name, `weight_scale_inv` is multiplied with. Weights are meant for FP8
products with activations that are quantised dynamically, for weights in blocks with a scale per
block of columns, or with a stored scale per tensor (static)."""

from __future__ import annotations

from fusewire.weights.quantized.module import EXPONENTS, ONE, SCALES, Module
from fusewire.weights.quantized.settings import Settings
from fusewire.weights.quantized.weight import (
    BLOCK,
    BLOCKS,
    QuantizedWeight,
    equal_groups,
    float8_e4m3,
)

_DEFAULT_BLOCK = (BLOCK, BLOCK)


class Fp8:
    """FP8 weights with a scale per block or per tensor."""

    parts = frozenset({"weight", "weight_scale_inv", "weight_scale"})
    unneeded = frozenset({"input_scale", "activation_scale", "k_scale", "v_scale"})
    input_scales = ("input_scale", "activation_scale")

    def __init__(self, settings: Settings) -> None:
        settings.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        scheme = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic")
        self._dynamic = scheme == "dynamic"
        settings.choice("scale_fmt", (None, "float", "ue8m0"))
        settings.choice("expert_dtype", (None, "fp8"))
        for key in ("modules_to_not_convert", "ignored_layers"):
            settings.names(key)
        # If missing, it is transformers' default or, in vLLM, null: the scales tell which.
        self._either = "weight_block_size" not in settings.values
        self._block: tuple[int, int] | None = _DEFAULT_BLOCK
        if not self._either:
            whole = settings.values["weight_block_size"] is None
            self._block = None if whole else settings.sizes("weight_block_size")

    def transposed(self, module: Module) -> bool:
        return False

    def shape(self, module: Module) -> tuple[int, int]:
        """Returns [out_features, in_features]. Raises CheckpointError if parts are missing or do
        not fit."""
        rows, columns = module.part("weight", ("F8_E4M3",)).shape
        name = self._scale(module)
        module.only("weight", name, *self.input_scales)
        shapes: tuple[tuple[int, ...], ...] = ()
        if self._block is not None:
            shapes = ((-(-rows // self._block[0]), -(-columns // self._block[1])),)
        if self._block is None or self._either:
            shapes += ONE
        module.part(name, (*SCALES, EXPONENTS), *shapes)
        if not self._dynamic:
            module.input_scale(*self.input_scales)
        return rows, columns

    def weight(self, module: Module) -> QuantizedWeight:
        rows, columns = self.shape(module)
        scales = module.scales(self._scale(module))
        block = (rows, columns)
        if self._block is not None and not (self._either and scales.size == 1):
            block = self._block
        input_scale = 0.0 if self._dynamic else module.input_scale(*self.input_scales)
        return QuantizedWeight(
            module.float8("weight", (rows, columns)),
            float8_e4m3(),
            scales.reshape(-(-rows // block[0]), -(-columns // block[1])),
            None,
            block[0],
            equal_groups(columns, block[1]),
            BLOCKS if self._dynamic and block == (BLOCK, BLOCK) else "float8_e4m3",
            input_scale,
        )

    def _scale(self, module: Module) -> str:
        per_tensor = self._block is None or self._either
        named = per_tensor and "weight_scale" in module and "weight_scale_inv" not in module
        return "weight_scale" if named else "weight_scale_inv"
