"""Images in the input of /v1/embeddings, as in Jina's API: `{"image": "<base64>"}`, beside
`{"text": "…"}`. The endpoint fetches nothing: URLs of images are refused."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from fusewire_client import AsyncClient
from numpy.typing import NDArray

from fusewire.errors import InvalidInput
from fusewire.serving.openai.bodies import check_count, check_text
from fusewire.serving.openai.errors import shown
from fusewire.serving.openai.served import ImageEncoder

# The prefix of the base64 in a data URL.
_DATA_URL = re.compile(r"data:image/[a-z.+-]{1,32};base64,")
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,15}:")

Item = str | bytes  # a text, or an encoded image


def items_of(field: str, value: Any, most: int) -> list[Item] | None:
    """Returns the texts and images of an input that contains objects, in order. Returns None for
    other inputs: plain texts and ids are checked elsewhere. Raises InvalidInput."""
    entries = value if isinstance(value, list) else [value]
    if not any(isinstance(entry, dict) for entry in entries):
        return None
    check_count(field, entries, most)
    return [_item(field, entry, index) for index, entry in enumerate(entries)]


async def embedded(
    client: AsyncClient, model: ImageEncoder, items: Sequence[Item], parameters: dict[str, Any]
) -> NDArray[np.float32]:
    """Returns the vectors of texts and images, [items, size]."""
    found: dict[int, NDArray[np.float32]] = {}
    for argument, kind in (("texts", str), ("images", bytes)):
        places = [place for place, item in enumerate(items) if isinstance(item, kind)]
        if places:
            given = {argument: [items[place] for place in places]}
            vectors = await client.embed(**given, model=model.name, **parameters)  # type: ignore[arg-type]
            found |= dict(zip(places, vectors, strict=True))
    return np.stack([found[place] for place in range(len(items))])


def _item(field: str, entry: Any, index: int) -> Item:
    if isinstance(entry, str):
        entry = {"text": entry}
    if isinstance(entry, dict) and len(entry) == 1:
        [(kind, value)] = entry.items()
        if kind == "text" and isinstance(value, str):
            check_text(field, value)
            return value
        if kind == "image" and isinstance(value, str):
            return _decoded(field, value, index)
    wanted = 'a text, {"text": "…"} or {"image": "<base64>"}'
    raise InvalidInput(field, f"{shown(entry)} at {index}", wanted, "correct it")


def _decoded(field: str, text: str, index: int) -> bytes:
    head = _DATA_URL.match(text)
    if head is None and _ADDRESS.match(text):
        got, wanted = f"the address {shown(text)} at {index}", "an image in base64"
        raise InvalidInput(field, got, wanted, "send the file itself; the server fetches nothing")
    try:
        return base64.b64decode(text[head.end() if head else 0 :], validate=True)
    except (binascii.Error, ValueError):
        got, wanted = f"{shown(text)} at {index}", "an image in base64, or a data URL of one"
        raise InvalidInput(field, got, wanted, "encode the bytes of the file") from None
