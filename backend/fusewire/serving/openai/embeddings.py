"""/v1/embeddings: vectors as lists of numbers, or as their bytes in base64."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from fusewire_client import AsyncClient

from fusewire.errors import InvalidInput
from fusewire.serving.openai.requests import MOST_TEXTS, EmbeddingRequest, texts_or_ids
from fusewire.serving.openai.served import EMBED, Served
from fusewire.tasks.parameters import REQUEST_PARAMETERS


async def embeddings(client: AsyncClient, model: Served, body: EmbeddingRequest) -> dict[str, Any]:
    """The answer's body."""
    rows = texts_or_ids("input", body.input, MOST_TEXTS)
    asked = {"ids": rows} if isinstance(rows[0], list) else {"texts": rows}
    parameters = body.given()
    for name, value in parameters.items():
        if name not in REQUEST_PARAMETERS[EMBED]:  # the client's own arguments among them
            wanted = f"one of the parameters of embed ({', '.join(REQUEST_PARAMETERS[EMBED])})"
            raise InvalidInput(name, repr(value)[:80], wanted, "remove it")
    vectors = await client.embed(**asked, model=model.name, **parameters)
    tokens = await _count(model, rows)  # now, as what is refused may be long
    if body.dimensions not in (None, vectors.shape[1]):
        wanted = f"{vectors.shape[1]}, the model's own"
        raise InvalidInput("dimensions", body.dimensions, wanted, "remove it")
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, body)}
            for index, vector in enumerate(vectors)
        ],
        "model": model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def _count(model: Served, rows: list[Any]) -> int:
    if isinstance(rows[0], list):
        return sum(map(len, rows))
    return await asyncio.to_thread(model.count, rows)


def _written(vector: np.ndarray, body: EmbeddingRequest) -> str | list[float]:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
