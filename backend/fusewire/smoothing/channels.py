"""Where a decoder can be smoothed: channels that are the output of one norm or matrix and that only
matrices read. Dividing the channels at their source and multiplying the columns of the matrices
that read them leaves the function unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.errors import ConfigurationError
from fusewire.models import DECODERS, blueprint_of
from fusewire.models.blueprint import Attention, Blueprint, FeedForward, Layer
from fusewire.models.stored_weights import Dense, Norm, parts_of
from fusewire.weights.quantized.methods import quant_method

_REMEDY = "leave --smooth out"


@dataclass(frozen=True)
class Channels:
    """The inputs of the matrices `readers`: the output of the norm `source`, or the last `size`
    outputs of the matrix `source`. In the latter case the readers have each `width` of them
    `repeats` times in a row (values of grouped heads)."""

    source: Norm | Dense
    readers: tuple[Dense, ...]
    size: int
    width: int
    repeats: int = 1


def check_smooth(config: Mapping[str, Any], alpha: float) -> None:
    """Raises ConfigurationError where `smoothed` would raise it for this config.json or `alpha`."""
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
    """Returns the channels of all layers of a decoder. Raises ConfigurationError if its matrices do
    not read the output of a norm, or if the model also uses a tensor elsewhere that would be
    changed."""
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
    """Returns the matrix that reads the sublayer's input."""
    return sublayer.qkv if isinstance(sublayer, Attention) else sublayer.intermediate


def _of_layer(layer: Layer) -> list[Channels]:
    readers: dict[Norm, list[Dense]] = {}
    inside: list[Channels] = []
    for block in layer.blocks:
        sublayer, norm = block.sublayer, block.input_norm
        assert isinstance(sublayer, Attention | FeedForward)  # decoders have no cross-attention
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
    """Returns the channels between the two matrices of a sublayer. Factors pass through: the output
    of attention is a weighted mean of values, a gated feed-forward is linear in the up projection,
    and ReLU commutes with positive factors."""
    first, last = first_matrix(sublayer), sublayer.output
    if isinstance(sublayer, Attention):
        kv_heads = sublayer.kv_heads or sublayer.heads
        size = sublayer.kv_width
        return [Channels(first, (last,), size, size // kv_heads, sublayer.heads // kv_heads)]
    if sublayer.gated or sublayer.activation == "relu":
        return [Channels(first, (last,), last.inputs, last.inputs)]
    return []
