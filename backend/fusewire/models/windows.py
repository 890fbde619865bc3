"""Which layers have a sliding window of attention, and which attend to the whole text."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.models.config import Config

TYPES = ("full_attention", "sliding_attention")


def layer_types(config: Config, sliding: Callable[[int], bool]) -> list[str]:
    """Returns the type of each layer, one of TYPES. If the config has no `layer_types`, `sliding`
    tells by a layer's index whether it has a sliding window."""
    count = config.size("num_hidden_layers", most=4096)
    types = config.values.get("layer_types")
    if types is None:
        return [TYPES[bool(sliding(index))] for index in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(t in TYPES for t in types):
        raise config.fault("layer_types", types, f"{count} of {', '.join(TYPES)}")
    return types


def windows(config: Config, types: list[str], default: int | None = None) -> list[int]:
    """Returns the window of each layer, 0 for a layer without one."""
    if "sliding_attention" not in types:
        return [0] * len(types)
    window = config.size("sliding_window", default)
    return [window if each == "sliding_attention" else 0 for each in types]


def switched_windows(config: Config) -> list[int]:
    """Returns Qwen's windows: only with `use_sliding_window`, by default from layer
    `max_window_layers` on."""
    used = config.flag("use_sliding_window", False) and config.given("sliding_window", True)
    first = config.size("max_window_layers", 28, least=0)
    types = layer_types(config, lambda index: used and index >= first)
    if "sliding_attention" in types and not used:
        raise config.fault("use_sliding_window", used, "true for layers of sliding_attention")
    return windows(config, types, 4096)
