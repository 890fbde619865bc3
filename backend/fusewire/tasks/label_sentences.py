"""Turns the labels of a request into texts that a model compares with images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from fusewire.errors import InvalidInput, sent, type_name
from fusewire.tasks.inputs import decoded, row_of

FIELD = "candidate_labels"
TEMPLATE = "This is a photo of {}."  # transformers'
_PLACE = "{}"


def labels_of(array: NDArray[Any], rows: int) -> list[list[str]]:
    """Returns the labels of each row of `candidate_labels` [n, labels]. Raises InvalidInput."""
    if array.dtype.kind not in "OSU":
        raise InvalidInput(FIELD, f"dtype {array.dtype}", "strings (BYTES)", "send texts")
    if array.ndim != 2 or len(array) != rows or not array.shape[1]:
        got, wanted = f"shape {list(array.shape)}", f"shape [{rows}, labels]"
        raise InvalidInput(FIELD, got, wanted, "send the labels of each image, 1 or more")
    return [
        [decoded(FIELD, value, row_of(index, array)) for value in row]
        for index, row in enumerate(array)
    ]


def sentences(labels: Sequence[str], template: str | None) -> list[str]:
    """Returns the sentence of each label: the template (default: TEMPLATE) with `{}` replaced by
    the label. Raises InvalidInput for a str instead of a list, no labels, an empty label, or a
    template without `{}`."""
    if isinstance(labels, str):
        raise InvalidInput(FIELD, "one str", "a list of labels", "put the label into a list")
    if not labels:
        raise InvalidInput(FIELD, "none", "1 or more", "name the labels to choose from")
    for index, label in enumerate(labels):
        if not isinstance(label, str):
            raise InvalidInput(FIELD, f"{type_name(label)} at {index}", "str", "convert it")
        if not label.strip():
            got = f"an empty label at {index}"
            raise InvalidInput(FIELD, got, "a word or more", "leave it out")
    template = TEMPLATE if template is None else template
    if not isinstance(template, str) or _PLACE not in template:
        got, wanted = sent(template), "a sentence with {} in the place of the label"
        raise InvalidInput(
            "hypothesis_template", got, wanted, f"give {TEMPLATE!r}, or leave it out"
        )
    return [template.replace(_PLACE, label) for label in labels]
