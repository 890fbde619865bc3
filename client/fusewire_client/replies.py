"""The JSON answers of the tasks, parsed into the return types of the methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from .answers import Answer, Candidate, Entity
from .errors import ServerError

Item = TypeVar("Item")


def parsed(text: bytes, output: str, build: Callable[[Any], Item]) -> Item:
    """What `build` makes of the JSON; a ServerError when it is not what fusewire writes."""
    try:
        return build(json.loads(text))
    except (ValueError, TypeError, LookupError) as error:
        raise ServerError(
            f"{output}: got {text[:200]!r}, wanted the JSON of a fusewire model ({error!r}); "
            "is it another backend's model, or an older one?"
        ) from error


def entities(records: list[dict[str, Any]]) -> list[Entity]:
    # transformers names the field by whether neighbours were grouped; a reader need not care.
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
