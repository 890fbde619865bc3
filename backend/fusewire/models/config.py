"""Reads config.json strictly: every key that changes results is either supported or refused, by key
and value.

Keys that cannot change what a forward pass computes (dropout, initialisation, bookkeeping) are not
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, shown
from fusewire.weights import no_model_in, read_json
from fusewire.weights.quantized import method_of

FILE = "config.json"

# transformers' name -> ours. The variants of one row differ by less than fp32 rounding.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Keys that would change the architecture, and the values with which they do not.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
}

_MISSING = object()


class Config:
    """Typed access to config.json. Every fault is a CheckpointError with the key, got and
    wanted."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        for key, harmless in _HARMLESS.items():
            got = self.values.get(key, harmless[0])
            if not any(got == value and type(got) is type(value) for value in harmless):
                raise self.fault(key, got, f"{harmless[0]!r}")
        method_of(values)

    def size(
        self, key: str, default: int | None = None, most: int = 1 << 24, least: int = 1
    ) -> int:
        """Returns an integer in least..most."""
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.fault(key, value, f"a whole number in {least}..{most}")
        return value

    def one_or_two_sizes(
        self, key: str, default: int, most: int, least: int = 1
    ) -> tuple[int, int]:
        """Returns [height, width], given as two integers or as one for both, each checked as in
        `size`."""
        value = self._get(key, default)
        sizes = value if isinstance(value, (list, tuple)) else [value, value]
        if len(sizes) != 2 or not all(type(n) is int and least <= n <= most for n in sizes):
            raise self.fault(key, value, f"a whole number in {least}..{most}, or two of them")
        return sizes[0], sizes[1]

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a positive finite number."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self.fault(key, value, "a positive number")
        return float(value)

    def given(self, key: str, default: bool = False) -> bool:
        """Whether the key has a value other than null; `default` if it is missing."""
        return self.values[key] is not None if key in self.values else default

    def size_or_null(self, key: str, default: int | None, most: int = 1 << 24) -> int | None:
        """As `size`, for a key that may be null; `default` if it is missing."""
        return self.size(key, most=most) if self.given(key) else self._absent(key, default)

    def number_or_null(self, key: str, default: float | None) -> float | None:
        """As `number`, for a key that may be null; `default` if it is missing."""
        return self.number(key) if self.given(key) else self._absent(key, default)

    def token_ids(self, key: str, default: int | tuple[int, ...] | None) -> tuple[int, ...]:
        """Returns token ids, given as one id, a list of ids, or null for none."""
        value = self.values.get(key, default)
        ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
        if not all(type(each) is int and 0 <= each < 1 << 31 for each in ids):
            raise self.fault(key, value, "a token id or a list of them")
        return tuple(ids)

    def token_id(self, key: str, default: int | None) -> int | None:
        """Returns one token id, or None for null."""
        ids = self.token_ids(key, default)
        if len(ids) > 1:
            raise self.fault(key, list(ids), "one token id")
        return ids[0] if ids else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.fault(key, value, "true or false")
        return value

    def choice(self, key: str, default: str | None, allowed: Mapping[str, str]) -> str:
        """Returns the value that `allowed` maps the word to."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.fault(key, value, f"one of {', '.join(allowed)}")
        return allowed[value]

    def activation(self, key: str, default: str | None = None) -> str:
        return self.choice(key, default, ACTIVATIONS)

    def width(
        self, hidden: str = "hidden_size", heads: str = "num_attention_heads"
    ) -> tuple[int, int]:
        """Returns the hidden size and the number of heads, which divides it."""
        size, count = self.size(hidden), self.size(heads)
        if size % count:
            raise self.fault(heads, count, f"a divisor of {hidden} {size}")
        return size, count

    def labels(self) -> list[str]:
        """Returns label names by index, with transformers' default names."""
        table = self.values.get("id2label")
        if table is None:
            count = self.size("num_labels", 2, most=1 << 20)
            return [f"LABEL_{index}" for index in range(count)]
        try:
            named = {int(index): str(label) for index, label in dict(table).items()}
        except (TypeError, ValueError):
            raise self.fault("id2label", table, "a map from index to label") from None
        if not named or sorted(named) != list(range(len(named))):
            raise self.fault("id2label", sorted(named), f"the indices 0..{len(named) - 1}")
        return [named[index] for index in range(len(named))]

    @staticmethod
    def fault(key: str, got: object, wanted: str) -> CheckpointError:
        return CheckpointError(
            f"{FILE}: {key}: got {shown(got)}, wanted {wanted}; this model is not supported as it "
            "is"
        )

    def _absent(self, key: str, default: Any) -> Any:
        return None if key in self.values else default

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key, _MISSING)
        if value is _MISSING:
            if default is None:
                raise CheckpointError(
                    f"{FILE}: {key}: got nothing, wanted a value; download the file again"
                )
            return default
        return value


def read_config(folder: Path | str) -> dict[str, Any]:
    """Returns the folder's config.json, not validated."""
    values = read_json(folder, FILE)
    if values is None:
        raise no_model_in(folder)
    return values
