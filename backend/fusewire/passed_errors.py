"""Serialisation of errors as JSON values, to pass them between our processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire import errors
from fusewire.errors import FusewireError

_KINDS: dict[str, type[FusewireError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, FusewireError)
}


def as_values(error: FusewireError | OSError) -> dict[str, Any]:
    """Returns the kind, the text and the attributes of an error; an OSError becomes a
    FusewireError."""
    if isinstance(error, OSError):
        error = FusewireError(f"{error.filename or 'files'}: {error.strerror or error}")
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return {"kind": kind, "text": str(error), "attributes": vars(error)}


def error_of(values: Mapping[str, Any]) -> FusewireError:
    """Returns the error that `as_values` described. Raises KeyError or TypeError for other
    values."""
    kind = _KINDS[values["kind"]]
    error = kind.__new__(kind, values["text"])
    vars(error).update(values["attributes"])
    return error
