"""What both wires share: numpy arrays as Triton's raw tensor bytes, and which parameters may be
sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from .errors import InvalidArgument, ServerError, type_name

_RESERVED = {"sequence_id", "sequence_start", "sequence_end", "binary_data_output"}
# Names that Triton reserves too, and what to use here instead.
_OURS = {"priority": "send request_priority", "timeout": "set timeout_s"}


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for names that the server reserves, and for values it has no type
    for."""
    for name, value in parameters.items():
        if name in _RESERVED or name in _OURS or name.startswith("triton_"):
            remedy = _OURS.get(name, "remove it")
            raise InvalidArgument(f"{name}: got a reserved parameter, wanted a model's; {remedy}")
        if not isinstance(value, (str, int, float, bool)):
            raise InvalidArgument(
                f"{name}: got {type_name(value)}, wanted str, int, float or bool; "
                "leave it out for the model's default"
            )
        if isinstance(value, str) and not value.isascii():
            _check_unicode(name, value)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"{name}: got {value}, wanted a 64-bit integer; make it smaller")


def _check_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: got a lone surrogate at {error.start}, wanted text; send valid Unicode"
        ) from None


def datatype_of(name: str, array: np.ndarray) -> str:
    """Returns Triton's name of the array's type."""
    datatype: str | None = (
        np_to_triton_dtype(array.dtype) if isinstance(array, np.ndarray) else None
    )
    if datatype is None:
        got = getattr(array, "dtype", type_name(array))
        raise InvalidArgument(f"{name}: got {got}, wanted a numpy array of a Triton type; convert")
    return datatype


def raw_bytes(array: np.ndarray) -> bytes:
    """Returns the array's bytes in C order; strings as length and bytes."""
    if array.dtype.kind in "OSU":
        strings = array.astype(np.object_)
        return serialize_byte_tensor(strings).item() if strings.size else b""
    return array.tobytes()


def sized(name: str, flat: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns `flat` in this shape. Missing bytes are an error, never an empty array."""
    if flat.size != math.prod(shape):  # np.prod takes longer than the rest of a small answer
        raise ServerError(
            f"{name}: got {flat.size} values, wanted shape {list(shape)}; the server's backend "
            "lost them (Triton older than 25.x does with numpy 2)"
        )
    return flat.reshape(tuple(shape))
