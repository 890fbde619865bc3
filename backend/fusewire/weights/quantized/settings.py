"""Reads the quantization_config of a config.json strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import CheckpointError, shown

_REMEDY = "use an unquantised copy of the model, or one quantised in a format that is read"


class Settings:
    """Typed access; every fault is a CheckpointError with the key, got and wanted."""

    def __init__(self, values: Any, path: str) -> None:
        self.path = path
        if not isinstance(values, Mapping):
            raise fault(path, values, "an object")
        self.values = values

    def choice(self, key: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        """Returns the value, which has to be one of `allowed`, of the same type."""
        got = self.values.get(key, default)
        if not any(got == value and type(got) is type(value) for value in allowed):
            raise self.fault(key, f"one of {', '.join(map(repr, allowed))}")
        return got

    def size(self, key: str) -> int:
        """Returns an integer, at least 1."""
        got = self.values.get(key)
        if type(got) is not int or not 1 <= got < 1 << 31:
            raise self.fault(key, "a whole number, at least 1")
        return got

    def sizes(self, key: str) -> tuple[int, int]:
        """Returns two integers, each at least 1."""
        got = self.values.get(key)
        if (
            not isinstance(got, list)
            or len(got) != 2
            or not all(type(n) is int and 1 <= n < 1 << 31 for n in got)
        ):
            raise self.fault(key, "two whole numbers, at least 1")
        return got[0], got[1]

    def group_size(self, key: str) -> int:
        """Returns the number of columns per group; 0 if all columns are one group (-1 in the
        file)."""
        return 0 if self.values.get(key) == -1 else self.size(key)

    def names(self, key: str) -> list[str]:
        """Returns a list of strings; empty if it is null or missing."""
        got = self.values.get(key)
        got = [] if got is None else got
        if not isinstance(got, list) or not all(isinstance(name, str) for name in got):
            raise self.fault(key, "a list of names")
        return got

    def section(self, key: str) -> Settings:
        return Settings(self.values.get(key), f"{self.path}.{key}")

    def absent(self, *keys: str) -> None:
        """Raises CheckpointError if a key has a value that would change the result."""
        for key in keys:
            if self.values.get(key) not in (None, {}, [], False):
                raise self.fault(key, "nothing")

    def fault(self, key: str, wanted: str) -> CheckpointError:
        return fault(f"{self.path}.{key}", self.values.get(key), wanted)


def fault(path: str, got: object, wanted: str, remedy: str = _REMEDY) -> CheckpointError:
    return CheckpointError(f"config.json: {path}: got {shown(got)}, wanted {wanted}; {remedy}")
