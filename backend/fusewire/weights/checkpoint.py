"""A checkpoint as a strict map: every tensor is either wanted, known to be skipped, or an error.

Names are normalised: the base model's prefix is removed (`bert.` in a model with a head, nothing in
a bare one), and the LayerNorm names of converted TensorFlow files (`gamma`, `beta`) become today's.
Tied tensors are aliases: a name that is not stored is served by any name of its group that is. If
config.json declares quantised weights, they are dequantised one by one when they are taken, or
taken as their stored codes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import CheckpointError
from fusewire.weights.folder import file_in, open_folder, read_json, weight_files
from fusewire.weights.formats import CONFIG
from fusewire.weights.quantized import (
    Int4,
    QuantizedTensor,
    StoredCodes,
    method_of,
    with_weights,
)
from fusewire.weights.quantized.cache_scales import CacheScales, is_cache_scale
from fusewire.weights.quantized.methods import settings_of
from fusewire.weights.safetensors import FLOATS, StoredTensor, read_safetensors

# Buffers that old transformers versions stored; they are recomputed, never read.
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_LEGACY = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_LISTED = 8
_UNDECLARED = "quantised weights need a quantization_config in config.json"
_PACKED = (".qweight", ".weight_packed")


class Checkpoint:
    """Named fp32 tensors. Call `check` once with all wanted names, then `take` for each."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor | QuantizedTensor],
        source: str,
        prefix: str = "",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`source`: the name of the origin in messages. `prefix`: transformers' base_model_prefix.
        `aliases`: name -> name; all names that are tied to one name form a group with it."""
        self.source = source
        self._groups: dict[str, tuple[str, ...]] = {}
        for tied, first in (aliases or {}).items():
            group = (*self._groups.get(first, (first,)), tied)
            self._groups.update(dict.fromkeys(group, group))
        self.cache_scales = CacheScales(None, {})
        self._of_each_file: list[StoredTensor] = []  # one tensor of each file
        self._origins: dict[str, str | None] = {}
        self._tensors: dict[str, StoredTensor | QuantizedTensor] = {}
        for stored, tensor in tensors.items():
            name = normal_name(stored, prefix)
            if name in self._tensors:
                raise CheckpointError(
                    f"{source}: got two tensors for {name!r} (with and without {prefix!r}), "
                    "wanted one; save the model again with transformers"
                )
            self._tensors[name] = tensor

    @classmethod
    def open(
        cls, folder: Path | str, prefix: str = "", aliases: Mapping[str, str] | None = None
    ) -> Checkpoint:
        """Maps the folder's safetensors file or shards into memory; no weight is read yet."""
        tensors: dict[str, StoredTensor] = {}
        first_tensors = []
        files = weight_files(folder)
        for name, listed in files.items():
            path = file_in(folder, name)
            if path is None:
                raise CheckpointError(f"{name}: disappeared while the folder was read; try again")
            held = read_safetensors(path, name)
            if listed is not None and set(listed) != held.keys():
                odd = sorted(set(listed) ^ held.keys())
                raise CheckpointError(
                    f"{name}: the index and the file disagree about {_names(odd)}; "
                    "download the index and all shards again"
                )
            tensors.update(held)
            first_tensors += list(held.values())[:1]
        source = next(iter(files)) if len(files) == 1 else open_folder(folder).name
        config = read_json(folder, CONFIG) or {}
        method = method_of(config)
        weights = tensors if method is None else with_weights(tensors, method)
        checkpoint = cls(weights, source, prefix, aliases)
        checkpoint._of_each_file = first_tensors
        checkpoint.cache_scales = CacheScales(
            settings_of(config),
            {normal_name(n, prefix): each for n, each in tensors.items() if is_cache_scale(n)},
        )
        return checkpoint

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        source: str,
        prefix: str = "",
        aliases: Mapping[str, str] | None = None,
    ) -> Checkpoint:
        """Wraps live arrays (fp32 weights, integer buffers); contiguous ones are not copied."""
        tensors = {}
        for name, array in arrays.items():
            dtype = "F32" if array.dtype == np.float32 else "I64"
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            tensors[name] = StoredTensor(source, dtype, array.shape, data)
        return cls(tensors, source, prefix, aliases)

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) is not None

    def origin(self, name: str) -> str | None:
        """Returns the name of the tensor that a name's values are read from, the same for all names
        with the same values. Tied tensors that are stored with different values have different
        origins, as in transformers. Returns None if neither the name nor its group is stored."""
        if name not in self._origins:
            stored = self._stored_name(name)
            self._origins[name] = stored and next(
                each
                for each in self._group(name)
                if each in self._tensors and self._tensors[each].equals(self._tensors[stored])
            )
        return self._origins[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the stored shape of a tensor or of its alias; None when neither is stored."""
        stored = self._stored_name(name)
        return None if stored is None else self._tensors[stored].shape

    def check(self, wanted: Mapping[str, tuple[int, ...]], skip: Collection[str]) -> None:
        """Raises one CheckpointError that lists all missing, misshapen, unreadable and unexpected
        tensors, or else one for wrong scales, zero points or groups of a quantised weight.

        `skip`: name prefixes of tensors that are known and not needed (other heads).
        """
        faults = []
        missing = [f"{n} {list(s)}" for n, s in wanted.items() if self.shape(n) is None]
        if missing:
            faults.append(f"missing: {_listed(missing)}")
        misshapen = [
            f"{name}: got {list(got)}, wanted {list(shape)}"
            for name, shape in wanted.items()
            if (got := self.shape(name)) is not None and got != shape
        ]
        if misshapen:
            faults.append(f"of another shape: {_listed(misshapen)}")
        used = {self._stored_name(name) for name in wanted}
        stored = [(name, self._tensors[name]) for name in used if name is not None]
        unread = [f"{name}: got {each.dtype}" for name, each in stored if not each.is_float]
        if unread:
            faults.append(
                f"of another type than {', '.join(FLOATS)}: {_listed(sorted(unread))} "
                f"({_UNDECLARED})"
            )
        used |= {each for name in wanted for each in self._group(name)}
        leftover = [
            name
            for name in self._tensors
            if name not in used
            and name not in BUFFERS
            and not name.startswith(tuple(skip))
            and not self._adds_nothing(name)
        ]
        if leftover:
            faults.append(f"unexpected: {_names(leftover)}")
        if faults:
            remedy = "check that config.json and the task belong to these weights"
            if any(name.endswith(_PACKED) for name in leftover):
                remedy = (
                    f"{_UNDECLARED}: what a quantize_config.json says, with the quant_method, or "
                    "download the folder again"
                )
            raise CheckpointError(f"{self.source}: tensors {'; '.join(faults)}; {remedy}")
        for _, each in stored:
            if isinstance(each, QuantizedTensor):
                each.stored()

    def take(self, name: str, dtype: str = "float32") -> NDArray[Any]:
        """Returns the tensor in fp32 (a view of the file if it is stored in fp32, else converted),
        or a view if it is stored in the 16-bit `dtype` (bfloat16: its bits as uint16)."""
        stored = self._stored_name(name)
        if stored is None:
            raise CheckpointError(f"{self.source}: tensor {name!r} is missing")
        return self._tensors[stored].numbers(name, dtype)

    def codes(self, name: str) -> StoredCodes | None:
        """Returns the codes of a weight that is stored for 8-bit products; None for other
        weights."""
        stored = self._stored_name(name)
        tensor = None if stored is None else self._tensors[stored]
        return tensor.codes() if isinstance(tensor, QuantizedTensor) else None

    def int4(self, name: str) -> Int4 | None:
        """Returns the codes of a weight that is stored in 4 bits, in groups that kernels support;
        None for other weights."""
        stored = self._stored_name(name)
        tensor = None if stored is None else self._tensors[stored]
        return tensor.int4() if isinstance(tensor, QuantizedTensor) else None

    def is_quantized(self, name: str) -> bool:
        """Whether a weight is stored quantised."""
        stored = self._stored_name(name)
        return stored is not None and isinstance(self._tensors[stored], QuantizedTensor)

    @property
    def quantized_bytes(self) -> int:
        """Stored bytes of all tensors; 0 if no weight is quantised."""
        if not any(isinstance(each, QuantizedTensor) for each in self._tensors.values()):
            return 0
        return sum(each.nbytes for each in self._tensors.values())

    def _adds_nothing(self, name: str) -> bool:
        """Whether this is a bias of zeros beside a quantised weight: packers add one to models
        without biases."""
        module, _, kind = name.rpartition(".")
        weight, bias = self._tensors.get(f"{module}.weight"), self._tensors[name]
        of_quantised = kind == "bias" and isinstance(weight, QuantizedTensor) and bias.is_float
        return of_quantised and not bias.float32(name).any()

    def release(self) -> None:
        """Gives the memory of the file pages that were read back to the system. Views that were
        taken stay valid; their pages are read again when they are accessed."""
        for tensor in self._of_each_file:
            tensor.release_file()

    def _stored_name(self, name: str) -> str | None:
        return next((each for each in (name, *self._group(name)) if each in self._tensors), None)

    def _group(self, name: str) -> tuple[str, ...]:
        return self._groups.get(name, (name,))


def normal_name(name: str, prefix: str) -> str:
    """Returns the normalised name of a stored tensor, without the base model's `prefix`."""
    if prefix and name.startswith(prefix + "."):
        name = name[len(prefix) + 1 :]
    for old, new in _LEGACY.items():
        if name.endswith(old):
            name = name[: -len(old)] + new
    return name


def _names(names: Collection[str]) -> str:
    return _listed([repr(name)[:120] for name in names])


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more
