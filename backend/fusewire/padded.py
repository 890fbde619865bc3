"""Padded arrays of the Python interface: checks numpy or torch inputs, and pads packed results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusewire.errors import InvalidInput


class ModelOutput(dict[str, Any]):
    """Named results as transformers returns them: accessed by attribute, by name, or by index."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} here; there are {', '.join(self)}") from None

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


def is_torch(value: Any) -> bool:
    """Returns whether the value is a torch tensor, without importing torch."""
    return any((c.__module__, c.__name__) == ("torch", "Tensor") for c in type(value).__mro__)


def integers(name: str, value: Any) -> NDArray[np.int64]:
    """Returns any integer array or tensor as int64. Raises InvalidInput, with its name, for
    others."""
    try:
        array: NDArray[Any] = np.asarray(value.detach().cpu().numpy() if is_torch(value) else value)
    except ValueError:
        wanted, remedy = "rows of one length", "call the tokenizer with padding"
        raise InvalidInput(name, "lists of several lengths", wanted, remedy) from None
    if array.dtype.kind not in "iu":
        raise InvalidInput(name, f"dtype {array.dtype}", "integers", "pass token ids")
    return array.astype(np.int64, copy=False)


def token_mask(attention_mask: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Returns True for tokens, everywhere without a mask. Raises InvalidInput for a wrong mask."""
    if attention_mask is None:
        return np.ones(shape, np.bool_)
    if is_torch(attention_mask):
        attention_mask = attention_mask.detach().cpu().numpy()
    array = np.asarray(attention_mask)
    if array.shape != shape:
        raise InvalidInput(
            "attention_mask",
            f"shape {list(array.shape)}",
            f"{list(shape)} as input_ids",
            "pad both alike",
        )
    mask: NDArray[np.bool_] = array == 1
    if not (mask | (array == 0)).all():
        raise InvalidInput("attention_mask", "other values", "0 or 1", "pass the tokenizer's mask")
    if not mask.any(axis=1).all():
        raise InvalidInput(
            "attention_mask", "a row of zeros", "at least one 1 a row", "leave empty rows out"
        )
    return mask


def unpack(packed: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Returns packed rows at the positions that the mask selects, zeros elsewhere: [batch, length,
    ...]."""
    padded = np.zeros((*mask.shape, *packed.shape[1:]), packed.dtype)
    padded[mask] = packed
    return padded
