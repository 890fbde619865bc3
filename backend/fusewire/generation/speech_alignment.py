"""What a folder says of when words are said: the heads of the decoder that follow what is heard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusewire.errors import CheckpointError, shown
from fusewire.weights import read_json

_HEADS, _WIDTH = "alignment_heads", "median_filter_width"
_MOST_WIDTH = 255


def read_alignment(
    folder: Path | str, layers: int, heads: int
) -> tuple[Sequence[tuple[int, int]], int]:
    """The (layer, head) of each of them, and the width of the filter of their weights;
    CheckpointError. None of them where the folder names one that its decoder has not: distilled
    models come with those of the model that they were made of."""
    named = (read_json(folder, "generation_config.json") or {}).get(_HEADS)
    width = (read_json(folder, "config.json") or {}).get(_WIDTH, 7)
    if type(width) is not int or not 0 < width <= _MOST_WIDTH or width % 2 == 0:
        wanted = f"an odd number of positions, at most {_MOST_WIDTH}"
        raise _fault("config.json", _WIDTH, width, wanted)
    pairs = [] if named is None else named
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise _fault("generation_config.json", _HEADS, named, "a list of [layer, head]")
    found = tuple((layer, head) for layer, head in pairs)
    fit = all(layer < layers and head < heads for layer, head in found)
    return (found if fit else ()), width


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(each) is int and each >= 0 for each in value)
    )


def _fault(file: str, key: str, got: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: {key}: got {shown(got)}, wanted {wanted}; download the file again"
    )
