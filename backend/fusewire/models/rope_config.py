"""The RoPE parameters of a decoder's config.json: `rope_parameters`, or `rope_scaling` and
`rope_theta` in older files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.models import rope
from fusewire.models.config import Config
from fusewire.models.rope import Floats, Rope

TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
}
LONGEST = 1 << 20  # positions: the tables have a row for each


def read_rope(
    config: Config,
    head_dim: int,
    *,
    theta: float | None = None,
    share: float | None = None,
    partial: bool = False,
    types: Mapping[str, str] | None = None,
) -> Rope:
    """Reads the RoPE of a model. `theta` and `share` (the rotated share of a head): defaults for
    the RoPE parameters; without them config.json's `rope_theta` and `partial_rotary_factor`, which
    some architectures name differently. `partial`: whether a share below 1 is supported. `types`:
    the architecture's own names of scalings."""
    theta = config.number("rope_theta", 10_000.0) if theta is None else theta
    share = config.number("partial_rotary_factor", 1.0) if share is None else share
    key = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    given = config.values.get(key) or {}
    return _Reader(config, key, given, theta).rope(head_dim, share, partial, types)


def rope_of_layer_type(config: Config, head_dim: int, layer_type: str, theta: float) -> Rope:
    """Reads the RoPE of a layer type if `rope_parameters` has an entry for each type (Gemma 3)."""
    both = config.values.get("rope_parameters") or {}
    if not isinstance(both, Mapping) or not both.keys() <= {"full_attention", "sliding_attention"}:
        raise config.fault("rope_parameters", both, "an object by layer type")
    key, given = f"rope_parameters.{layer_type}", both.get(layer_type) or {}
    older = config.values.get("rope_scaling")
    if older and layer_type == "full_attention":
        key, given = "rope_scaling", older
    return _Reader(config, key, given, theta).rope(head_dim, 1.0, False, None)


class _Reader:
    """Reads one object of RoPE parameters; errors name its keys as `rope_scaling.factor`."""

    def __init__(self, config: Config, key: str, given: Any, theta: float) -> None:
        if not isinstance(given, Mapping):
            raise config.fault(key, given, "an object")
        for name, value in given.items():
            if name not in _KEYS:
                raise config.fault(f"{key}.{name}", value, f"only {', '.join(sorted(_KEYS))}")
        self._model = config
        self._key = key
        self._values = {name: value for name, value in given.items() if value is not None}
        self._own = Config({f"{key}.{name}": value for name, value in self._values.items()})
        self._theta = self._number("rope_theta", theta)

    def rope(
        self, head_dim: int, share: float, partial: bool, types: Mapping[str, str] | None
    ) -> Rope:
        share = self._number("partial_rotary_factor", share)
        if share > 1 or (share < 1 and not partial):
            wanted = "at most 1" if partial else "1 in this architecture"
            raise self._model.fault(f"{self._key}.partial_rotary_factor", share, wanted)
        dim = int(head_dim * share)
        if dim < 1 or dim + dim % 2 > head_dim:
            raise self._model.fault("head_dim", head_dim, "an even size (rotary)")
        named = "rope_type" if "rope_type" in self._values else "type"
        kind = self._own.choice(
            f"{self._key}.{named}", "default", types or {name: name for name in TYPES}
        )
        if dim % 2 and kind in ("yarn", "longrope"):
            raise self._model.fault(f"{self._key}.partial_rotary_factor", share, "even parts")
        match kind:
            case "linear":
                return Rope.of(rope.linear(self._theta, dim, self._number("factor")))
            case "llama3":
                return Rope.of(self._llama3(dim))
            case "yarn":
                return self._yarn(dim)
            case "longrope":
                return self._longrope(dim)
        return Rope.of(rope.unscaled(self._theta, dim))  # default and dynamic, see rope.py

    def _llama3(self, dim: int) -> Floats:
        low, high = self._number("low_freq_factor"), self._number("high_freq_factor")
        if high <= low:
            raise self._model.fault(f"{self._key}.high_freq_factor", high, f"more than {low}")
        return rope.llama3(self._theta, dim, self._number("factor"), low, high, self._original())

    def _yarn(self, dim: int) -> Rope:
        original = self._original()
        factor = self._number("factor", self._longest() / original)
        scale, whole = self._values.get("mscale"), self._values.get("mscale_all_dim")
        magnitude = rope.yarn_magnitude(factor)
        if scale and whole:
            magnitude = rope.yarn_magnitude(factor, self._number("mscale"))
            magnitude /= rope.yarn_magnitude(factor, self._number("mscale_all_dim"))
        frequencies = rope.yarn(
            self._theta,
            dim,
            factor,
            original,
            self._number("beta_fast", 32),
            self._number("beta_slow", 1),
            self._own.flag(f"{self._key}.truncate", True),
        )
        return Rope.of(frequencies, self._number("attention_factor", magnitude))

    def _longrope(self, dim: int) -> Rope:
        original = self._original()
        factor = self._number("factor", self._longest() / original)
        factors = self._factors("short_factor", dim // 2)
        self._factors("long_factor", dim // 2)
        magnitude = rope.longrope_magnitude(factor, original)
        return Rope.of(
            rope.longrope(self._theta, dim, factors),
            self._number("attention_factor", magnitude),
            original,
        )

    def _factors(self, name: str, count: int) -> list[float]:
        given = self._values.get(name)
        if (
            not isinstance(given, list)
            or len(given) != count
            or not all(type(each) in (int, float) and 0 < each < 1e30 for each in given)
        ):
            raise self._model.fault(f"{self._key}.{name}", given, f"{count} positive numbers")
        return given

    def _number(self, name: str, default: float | None = None) -> float:
        return self._own.number(f"{self._key}.{name}", default)

    def _original(self) -> int:
        """Returns the context length before scaling; a key beside the RoPE parameters takes
        precedence."""
        name = "original_max_position_embeddings"
        if self._model.values.get(name) is not None:
            return self._model.size(name, most=LONGEST, least=2)
        return self._own.size(f"{self._key}.{name}", self._longest(), most=LONGEST, least=2)

    def _longest(self) -> int:
        return self._model.size("max_position_embeddings", most=LONGEST)
