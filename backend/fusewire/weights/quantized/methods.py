"""Which formats of quantised weights are supported, and what to do about others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fusewire.weights.quantized.compressed_tensors import CompressedTensors
from fusewire.weights.quantized.fp8 import Fp8
from fusewire.weights.quantized.gptq import Awq, Gptq
from fusewire.weights.quantized.module import Module
from fusewire.weights.quantized.settings import Settings, fault
from fusewire.weights.quantized.weight import QuantizedWeight

KEYS = ("quantization_config", "compression_config")


def quant_method(config: Mapping[str, Any]) -> str | None:
    """Returns the quant_method of a config.json whose folder can be loaded; None if its weights are
    not quantised."""
    return next((config[key].get("quant_method") for key in KEYS if config.get(key)), None)


class Method(Protocol):
    """One format, with a folder's settings."""

    @property
    def parts(self) -> frozenset[str]:
        """Last name components of the tensors of a quantised weight."""

    @property
    def unneeded(self) -> frozenset[str]:
        """Last name components of tensors that only quantised activations and KV caches need."""

    @property
    def input_scales(self) -> tuple[str, ...]:
        """Those names of `unneeded` that are the scale of a quantised weight's input."""

    def shape(self, module: Module) -> tuple[int, int]:
        """Returns [out_features, in_features], from headers and a few values. Raises
        CheckpointError if a part is missing, or has a wrong type or shape."""

    def weight(self, module: Module) -> QuantizedWeight:
        """Returns the stored weight. Raises CheckpointError also if scales, zero points or groups
        are wrong."""

    def transposed(self, module: Module) -> bool:
        """Whether the model's own weight is [in_features, out_features]."""


READ = ("compressed-tensors", "fp8", "gptq", "awq", "auto-round")
_ORIGINAL = "use the unquantised model"
_OTHER = f"{_ORIGINAL}, or a copy quantised with one of {', '.join(READ)}"
_DEQUANTISED = (
    "load it with transformers and save what `model.dequantize()` gives in a new folder, or "
    + _OTHER
)
# Remedies for unsupported methods; for all others _OTHER.
_REFUSED = {
    "bitsandbytes": _DEQUANTISED,
    "mxfp4": _DEQUANTISED,
    "torchao": "quantise it with llm-compressor instead, or " + _OTHER,
    "gguf": "use the model in the Transformers format that it was converted from",
}
_OF_BITSANDBYTES = {f"{start}load_in_{bits}bit" for start in ("", "_") for bits in (4, 8)}
# AutoRound's packings: the method with the same, and its version of the zero points.
_PACKINGS = {
    "auto_round:auto_gptq": ("gptq", "gptq"),
    "auto_round:auto_awq": ("awq", ""),
    "auto_round": ("gptq", "gptq_v2"),
    "auto_round:gptqmodel": ("gptq", "gptq_v2"),
}


def settings_of(config: Mapping[str, Any]) -> Settings | None:
    """Returns the quantisation settings of a config.json; None if it has none."""
    key = next((each for each in KEYS if config.get(each) is not None), None)
    return None if key is None else Settings(config[key], key)


def method_of(config: Mapping[str, Any]) -> Method | None:
    """Returns the format that a config.json declares, None for plain weights. Raises
    CheckpointError for an unsupported format, with its name and a remedy."""
    settings = settings_of(config)
    if settings is None:
        return None
    key = settings.path
    name = settings.values.get("quant_method")
    if name is None and key == "compression_config":
        name = "compressed-tensors"
    if name == "compressed-tensors":
        return CompressedTensors(settings, config.get("model_type"))
    version = "gptq"
    if name == "auto-round":
        settings.choice("data_type", ("int",), "int")
        name, version = _PACKINGS[
            settings.choice("packing_format", tuple(_PACKINGS), next(iter(_PACKINGS)))
        ]
    if name == "fp8":
        return Fp8(settings)
    if name == "gptq":
        return Gptq(settings, config.get("model_type"), version)
    if name == "awq":
        return Awq(settings)
    if name is None and not _OF_BITSANDBYTES.isdisjoint(settings.values):
        name = "bitsandbytes"  # saved by an old version of transformers
    wanted = f"a quant_method of {', '.join(READ)}"
    remedy = _REFUSED.get(name, _OTHER) if isinstance(name, str) else _OTHER
    raise fault(key, settings.values if name is None else name, wanted, remedy)
