"""The scales that keys and values of a float8 cache are divided by, one per attention, as
calibrated for a folder (compressed-tensors' kv_cache_scheme; scales beside the attentions of FP8
folders)."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.errors import CheckpointError
from fusewire.weights.quantized.settings import Settings, fault
from fusewire.weights.safetensors import StoredTensor

_PARTS = ("k_scale", "v_scale")
# The names in early versions of compressed-tensors; without a scheme they mean something else.
_EARLY = ("k_proj.output_scale", "v_proj.output_scale")
_SCHEME = {
    "type": "float",
    "num_bits": 8,
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}
_REMEDY = (
    "leave kv_cache_dtype out, or remove kv_cache_scheme from config.json, whose scales are then 1"
)


class CacheScales:
    """The scales of a checkpoint; each is checked when it is asked for."""

    def __init__(self, settings: Settings | None, tensors: Mapping[str, StoredTensor]) -> None:
        """`settings`: those of a quantised folder. `tensors`: by their names in the checkpoint."""
        scheme = settings is not None and settings.values.get("kv_cache_scheme")
        self._scheme = settings.section("kv_cache_scheme") if settings and scheme else None
        self._tensors = tensors

    def of(self, attention: str) -> tuple[float, float]:
        """Returns the scales of keys and of values, 1 if the folder has none. Raises
        CheckpointError for a scheme other than one scale per attention, and for tensors that are
        missing or have another shape."""
        names = [f"{attention}.{part}" for part in _PARTS]
        if self._scheme is not None:
            _check_scheme(self._scheme)
            early = [f"{attention}.{part}" for part in _EARLY]
            names = early if early[0] in self._tensors else names
        elif not any(name in self._tensors for name in names):
            return 1.0, 1.0
        k_scale, v_scale = map(self._number, names)
        return k_scale, v_scale

    def _number(self, name: str) -> float:
        if name not in self._tensors:
            raise CheckpointError(
                f"tensor {name!r}: got none, wanted the scale of a KV cache; {_REMEDY}"
            )
        tensor = self._tensors[name]
        if tensor.shape not in ((), (1,)):
            raise CheckpointError(
                f"{tensor.file}: tensor {name!r}: got {list(tensor.shape)}, wanted one number; "
                f"{_REMEDY}"
            )
        return float(tensor.float32(name).reshape(-1)[0])


def is_cache_scale(name: str) -> bool:
    """Whether the name of a stored tensor may be that of a cache scale."""
    return name.endswith(tuple(f".{each}" for each in (*_PARTS, *_EARLY)))


def _check_scheme(scheme: Settings) -> None:
    for key, wanted in _SCHEME.items():
        got = scheme.values.get(key, wanted)
        if got != wanted or type(got) is not type(wanted):
            raise fault(f"{scheme.path}.{key}", got, repr(wanted), _REMEDY)
