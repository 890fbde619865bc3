"""/v1/embeddings: vectors as lists of numbers, or as their bytes in base64."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

import numpy as np
from fusewire_client import AsyncClient
from numpy.typing import NDArray
from pydantic import Field

from fusewire.errors import InvalidInput
from fusewire.serving.openai.answering import Computed
from fusewire.serving.openai.bodies import MOST_TEXTS, texts_or_ids
from fusewire.serving.openai.encoding import EncoderBody, encoder_parameters, usage
from fusewire.serving.openai.served import Encoder

# The names of prompts that a query or a document may have, best first.
_PROMPTS_OF = {"query": ("query",), "document": ("document", "passage", "corpus")}


class EmbeddingRequest(EncoderBody):
    """Of /v1/embeddings."""

    input: Any = Field(description="A text, or a list of them.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        default=None, ge=1, description="Number of leading values of each vector to return, for "
        "models trained for it (Matryoshka). Default: all."
    )  # fmt: skip
    prompt_name: str | None = Field(
        default=None, description="Name of the model's prompt to put before each text."
    )
    input_type: Literal["query", "document"] | None = Field(
        default=None, description="Chooses the prompt of queries or documents, if there is one."
    )


async def embeddings(
    client: AsyncClient, model: Encoder, body: EmbeddingRequest, accept_token_ids: bool
) -> Computed:
    """The answer's body, and the tokens computed. `accept_token_ids`: take ids as input."""
    rows = texts_or_ids("input", body.input, MOST_TEXTS)
    if isinstance(rows[0], list) and not accept_token_ids:
        raise InvalidInput(
            "input",
            "token ids",
            "texts, as the ids of another tokenizer than the model's give wrong vectors",
            "let the client send texts (LangChain: check_embedding_ctx_length=False), or start the "
            "server with --accept-token-ids where they are the model's own",
        )
    parameters = encoder_parameters(model, body.given(), body.truncate_prompt_tokens)
    if (name := _prompt_name(model, body)) is not None:
        parameters["prompt_name"] = name
    settings = model.request_settings(parameters)
    width = model.width if body.dimensions is None else body.dimensions
    if width > model.width:
        wanted = f"at most {model.width}, as many as the model's vectors have"
        raise InvalidInput("dimensions", width, wanted, "lower or remove it")
    asked: dict[str, Any] = {"ids": rows} if isinstance(rows[0], list) else {"texts": rows}
    vectors = await client.embed(**asked, model=model.name, **parameters)
    if width < model.width:
        vectors = _shortened(vectors, width, model.normalizes(settings))
    # Now, as what is refused may be long.
    tokens = (
        sum(map(len, rows))
        if "ids" in asked
        else await asyncio.to_thread(model.count, asked["texts"], settings)
    )
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, body)}
            for index, vector in enumerate(vectors)
        ],
        "model": model.name,
        "usage": usage(tokens),
    }
    return answer, tokens


def _prompt_name(model: Encoder, body: EmbeddingRequest) -> str | None:
    if body.input_type is None:
        return body.prompt_name
    if body.prompt_name is not None or "prompt" in body.given():
        raise InvalidInput(
            "input_type", "input_type together with a prompt", "one of them", "drop one"
        )
    fitting = (name for name in _PROMPTS_OF[body.input_type] if name in model.files.prompts)
    return next(fitting, None)


def _shortened(vectors: NDArray[np.float32], width: int, normalized: bool) -> NDArray[np.float32]:
    """The first `width` numbers of each vector, of length 1 again where it was."""
    vectors = vectors[:, :width]
    if not normalized:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def _written(vector: NDArray[np.float32], body: EmbeddingRequest) -> str | list[float]:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
