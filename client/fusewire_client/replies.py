"""Parses the JSON answers of the tasks into the return types of the methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from .answers import Answer, Candidate, Entity
from .errors import ServerError

Item = TypeVar("Item")


def parsed(text: bytes, output: str, build: Callable[[Any], Item]) -> Item:
    """Returns what `build` makes of the JSON; raises ServerError where it is not fusewire's
    format."""
    try:
        return build(json.loads(text))
    except (ValueError, TypeError, LookupError) as error:
        raise ServerError(
            f"{output}: got {text[:200]!r}, wanted the JSON of a fusewire model ({error!r}); "
            "is it another backend's model, or an older one?"
        ) from error


def entities(records: list[dict[str, Any]]) -> list[Entity]:
    # The name of transformers' field depends on whether neighbours were grouped; ours does not.
    return [
        Entity(
            record["entity_group"] if "entity_group" in record else record["entity"],
            record["word"],
            record["start"],
            record["end"],
            record["score"],
        )
        for record in records
    ]


def spans(reply: Any) -> list[Answer]:
    records = reply if isinstance(reply, list) else [reply]
    return [Answer(r["text"], r["start"], r["end"], r["score"]) for r in records]


def masks(reply: list[Any]) -> list[list[Candidate]]:
    masks = reply if isinstance(reply[0], list) else [reply]
    return [
        [Candidate(r["token_str"], r["token"], r["score"], r["sequence"]) for r in mask]
        for mask in masks
    ]
