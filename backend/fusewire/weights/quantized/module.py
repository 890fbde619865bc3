"""The stored tensors of one quantised module, with checks of type, shape and range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError
from fusewire.weights.quantized.weight import Codes, Int4, QuantizedWeight, StoredCodes
from fusewire.weights.safetensors import StoredTensor

SCALES = ("F16", "BF16", "F32")
EXPONENTS = "F8_E8M0"
ONE = ((), (1,), (1, 1))  # shapes of a single scale
WHOLE = ("I32", "I64")
_MOST = 1e35  # the product with the value of any code is finite in fp32
# Conv1D of transformers: its weight is [in_features, out_features], but quantised like a Linear's.
_CONV1D = {"gpt2": ("c_attn", "c_fc", "c_proj", "q_attn")}
_REMEDY = "download the folder again, or quantise the model again"


@dataclass(frozen=True)
class Module:
    """The stored tensors of module `name`, by the last components of their names."""

    name: str
    parts: Mapping[str, StoredTensor]

    def __contains__(self, part: str) -> bool:
        return part in self.parts

    def is_conv1d(self, model_type: Any) -> bool:
        """Whether models of this `model_type` have a Conv1D in this place."""
        names = _CONV1D.get(model_type, ()) if isinstance(model_type, str) else ()
        return self.name.rpartition(".")[2] in names

    def part(
        self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...], dims: int = 2
    ) -> StoredTensor:
        """Returns the part. Raises CheckpointError unless it has one of these types and shapes
        (without shapes: `dims` dimensions, none of them 0)."""
        if name not in self.parts:
            raise CheckpointError(
                f"{self._file}: tensor {self._full(name)!r}: got nothing beside "
                f"{', '.join(sorted(self.parts))}, wanted {' or '.join(dtypes)}; {_REMEDY}"
            )
        tensor = self.parts[name]
        if tensor.dtype not in dtypes:
            raise self.fault(name, tensor.dtype, " or ".join(dtypes))
        if shapes and tensor.shape not in shapes:
            raise self.fault(name, list(tensor.shape), " or ".join(str(list(s)) for s in shapes))
        if not shapes and (len(tensor.shape) != dims or 0 in tensor.shape):
            raise self.fault(name, list(tensor.shape), f"{dims} dimensions, none of them 0")
        return tensor

    def only(self, *names: str) -> None:
        """Raises CheckpointError for a part with any other name."""
        for name in sorted(self.parts.keys() - set(names)):
            raise self.fault(name, "a tensor", f"none, as config.json has it (only {list(names)})")

    def scales(self, name: str, *, negative: bool = False) -> NDArray[np.float32]:
        """Returns the scales. Raises CheckpointError unless they are small enough for finite
        weights, and positive, or with `negative` at least not 0."""
        tensor = self.parts[name]
        exponents = tensor.dtype == EXPONENTS
        scales = _powers(tensor) if exponents else tensor.float32(self._full(name))
        right = (np.abs(scales) < _MOST) & ((scales != 0) if negative else (scales > 0))
        if not right.all():
            got = scales[np.unravel_index(np.argmin(right), scales.shape)]
            rest = "not 0" if negative else "greater than 0"
            raise self.fault(name, got, f"finite and {rest}, less than {_MOST:.0e}")
        return scales

    def input_scale(self, *names: str) -> float:
        """Returns the scale of the weight's input, which has one of these names."""
        name = next((each for each in names if each in self), names[0])
        self.part(name, SCALES, *ONE)
        return float(self.scales(name).reshape(()))

    def integers(self, name: str) -> NDArray[Any]:
        """Returns the part's integers, in their stored type."""
        tensor = self.parts[name]
        whole = {"I8": np.int8, "I32": np.int32, "I64": np.int64}[tensor.dtype]
        return tensor.data.view(whole).reshape(tensor.shape)

    def check_4_bits(self, name: str) -> None:
        """Raises CheckpointError unless the part's integers, in bytes, are in -8..7."""
        integers = self.integers(name)
        for got in (integers.min(initial=0), integers.max(initial=0)):
            if not -8 <= got <= 7:
                raise self.fault(name, got, "integers of 4 bits, in -8..7")

    def float8(self, name: str, shape: tuple[int, int]) -> Codes:
        """Returns the part's E4M3 codes. Raises CheckpointError if one of them is NaN."""
        codes = self.parts[name].data.reshape(shape)
        wrong = codes & np.uint8(127) == 127
        if wrong.any():
            raise self.fault(name, "NaN (code 0x7F or 0xFF)", "numbers")
        return Codes(codes, shape, 8)

    def words(self, name: str) -> NDArray[np.uint32]:
        """Returns the part's packed words."""
        return self.parts[name].data.view(np.uint32).reshape(self.parts[name].shape)

    def groups(self, name: str, count: int) -> NDArray[np.int64]:
        """Returns the group of each column. Raises CheckpointError unless all are in 0..count -
        1."""
        groups = self.integers(name)
        wrong = (groups < 0) | (groups >= count)
        if wrong.any():
            raise self.fault(name, groups[np.argmax(wrong)], f"groups in 0..{count - 1}")
        return groups.astype(np.int64)

    def fault(self, part: str, got: object, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{self.parts[part].file}: tensor {self._full(part)!r}: got {got}, wanted {wanted}; "
            f"{_REMEDY}"
        )

    @property
    def _file(self) -> str:
        return next(iter(self.parts.values())).file

    def _full(self, part: str) -> str:
        return f"{self.name}.{part}"


def _powers(tensor: StoredTensor) -> NDArray[np.float32]:
    """Returns the values of OCP's E8M0 codes (MX specification, version 1.0): 2 ** (code - 127),
    and NaN if all bits are set."""
    codes = tensor.data.reshape(tensor.shape)
    powers = np.ldexp(1.0, codes.astype(np.int32) - 127)
    return np.where(codes == 255, np.nan, powers).astype(np.float32)


@dataclass(frozen=True)
class QuantizedTensor:
    """The weight of a quantised module, in place of a StoredTensor; it is read only when it is
    asked for."""

    module: Module
    shape: tuple[int, ...]
    stored: Callable[[], QuantizedWeight]  # raises CheckpointError for wrong scales, zeros, groups
    transposed: bool = False  # whether the weight is [in_features, out_features], as in Conv1D

    is_float = True

    @property
    def dtype(self) -> str:
        return "quantised"

    def equals(self, other: object) -> bool:
        """Whether both have the same bytes under the same names."""
        if not isinstance(other, QuantizedTensor):
            return False
        here, there = self.module.parts, other.module.parts
        return here.keys() == there.keys() and all(here[p].equals(there[p]) for p in here)

    def codes(self) -> StoredCodes | None:
        """As `QuantizedWeight.for_products`; [out_features, in_features] also for a transposed
        weight."""
        return self.stored().for_products()

    def int4(self) -> Int4 | None:
        """As `QuantizedWeight.int4`; rows are out_features also for a transposed weight."""
        return self.stored().int4()

    @property
    def nbytes(self) -> int:
        """The number of stored bytes."""
        return sum(part.nbytes for part in self.module.parts.values())

    def numbers(self, name: str, dtype: str) -> NDArray[Any]:
        """Returns the dequantised values, always in fp32: rounding to a 16-bit `dtype` happens
        once, later."""
        return self.float32(name)

    def float32(self, name: str) -> NDArray[np.float32]:
        weight = self.stored().dequantized()
        return weight.T if self.transposed else weight
