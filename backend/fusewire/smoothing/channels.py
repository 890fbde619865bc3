"""Where a decoder can be smoothed: channels that one norm or matrix gives and that only matrices
read, so that dividing them there and multiplying the columns that read them leaves the function as
it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.errors import ConfigurationError
from fusewire.models import DECODERS, blueprint_of
from fusewire.models.blueprint import (
    Attention,
    Blueprint,
    Dense,
    FeedForward,
    Layer,
    Norm,
    parts_of,
)
from fusewire.weights.quantized.methods import quant_method

_REMEDY = "leave --smooth out"


@dataclass(frozen=True)
class Channels:
    """The inputs of the matrices `readers`: what the norm `source` gives, or the last `size`
    outputs of the matrix `source`, of which the readers have each `width` `repeats` times, one
    after the other (values of grouped heads)."""

    source: Norm | Dense
    readers: tuple[Dense, ...]
    size: int
    width: int
    repeats: int = 1


def check_smooth(config: Mapping[str, Any], alpha: float) -> None:
    """ConfigurationError where `smoothed` would raise it for this config.json or `alpha`."""
    if not 0 <= alpha <= 1:
        raise ConfigurationError(f"smooth: got {alpha}, wanted a number in 0..1; 0.5 is usual")
    model_type = config.get("model_type")
    if model_type not in DECODERS:
        raise ConfigurationError(
            f"smooth: got a model of the type {model_type}, wanted a decoder "
            f"({', '.join(DECODERS)}), whose norms give what matrices read and nothing else; "
            f"{_REMEDY}"
        )
    if (method := quant_method(config)) is not None:
        raise ConfigurationError(
            f"smooth: got weights that are quantised already ({method}), wanted those they were "
            f"made of; give that model, or {_REMEDY}"
        )
    channels_of(blueprint_of(config, "generate"))


def channels_of(blueprint: Blueprint) -> list[Channels]:
    """The channels of all layers of a decoder. ConfigurationError for one that has no norm in front
    of its matrices, and for a tensor to be changed that the model uses elsewhere too."""
    found = [channels for layer in blueprint.stack.layers for channels in _of_layer(layer)]
    places = Counter(
        name
        for part in parts_of((blueprint.stack, *blueprint.task_heads.values()))
        for name in part.tensors()
    )
    places.update(blueprint.aliases.values())
    for channels in found:
        norm = isinstance(channels.source, Norm)
        allowed = {name: len(channels.readers) if norm else 1 for name in channels.source.tensors()}
        allowed |= {name: 1 for reader in channels.readers for name in reader.tensors()}
        for name, count in allowed.items():
            if places[name] > count:
                raise ConfigurationError(
                    f"smooth: got {name}, which the model uses in {places[name]} places (tied), "
                    f"wanted one of its own for each; {_REMEDY}"
                )
    return found


def first_matrix(sublayer: Attention | FeedForward) -> Dense:
    """The matrix that reads the sublayer's input."""
    return sublayer.qkv if isinstance(sublayer, Attention) else sublayer.intermediate


def _of_layer(layer: Layer) -> list[Channels]:
    readers: dict[Norm, list[Dense]] = {}
    inside: list[Channels] = []
    for block in layer.blocks:
        sublayer, norm = block.sublayer, block.input_norm
        assert isinstance(sublayer, Attention | FeedForward)  # decoders read no sources
        first = first_matrix(sublayer)
        if norm is None:
            raise ConfigurationError(
                f"smooth: got {first.names[0]} without a norm in front of it (norms are after the "
                f"residual), wanted one that gives its input alone; {_REMEDY}"
            )
        readers.setdefault(norm, []).append(first)
        inside += _inside(sublayer)
    normed = [Channels(norm, tuple(each), norm.size, norm.size) for norm, each in readers.items()]
    return normed + inside


def _inside(sublayer: Attention | FeedForward) -> list[Channels]:
    """Attention gives means of values; a gate multiplies ups, which are linear, and a ReLU of a
    multiple is that multiple."""
    first, last = first_matrix(sublayer), sublayer.output
    if isinstance(sublayer, Attention):
        kv_heads = sublayer.kv_heads or sublayer.heads
        size = sublayer.kv_width
        return [Channels(first, (last,), size, size // kv_heads, sublayer.heads // kv_heads)]
    if sublayer.gated or sublayer.activation == "relu":
        return [Channels(first, (last,), last.inputs, last.inputs)]
    return []
