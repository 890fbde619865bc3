"""/v1/embeddings: vectors as lists of numbers, or as base64 of their bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from fusewire_client import AsyncClient
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from fusewire.errors import InvalidInput
from fusewire.serving.openai.answering import Computed
from fusewire.serving.openai.bodies import MOST_TEXTS, texts_or_ids
from fusewire.serving.openai.encoding import EncoderBody, encoder_parameters, usage
from fusewire.serving.openai.image_embeddings import Item, embedded, items_of
from fusewire.serving.openai.served import Encoder, ImageEncoder, Served

# Names of the prompts for queries and documents, in order of preference.
_PROMPTS_OF = {"query": ("query",), "document": ("document", "passage", "corpus")}


Rows = list[str] | list[list[int]] | list[Item]


def _rows(value: Any) -> Rows:
    return items_of("input", value, MOST_TEXTS) or texts_or_ids("input", value, MOST_TEXTS)


class EmbeddingRequest(EncoderBody):
    """The body of /v1/embeddings."""

    # Validated to a list of texts, of lists of ids, or of texts and images.
    input: Annotated[Any, AfterValidator(_rows)] = Field(
        description='A text, or a list of texts; for image models also {"image": "<base64>"}.'
    )
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
    client: AsyncClient,
    model: Encoder | ImageEncoder,
    body: EmbeddingRequest,
    options: Mapping[str, Any],
    accept_token_ids: bool,
) -> Computed:
    """Returns the answer's body, and the number of computed tokens, to which images do not count.
    `options`: passed to every call. `accept_token_ids`: whether the input may be ids."""
    if isinstance(model, ImageEncoder):
        return await _of_images(client, model, body, options)
    rows = body.input
    if any(isinstance(row, bytes) for row in rows):
        got, wanted = f"an image for {model.name}, a model of texts", "texts"
        raise InvalidInput("input", got, wanted, "choose a model of images")
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
    _check_dimensions(body, model.width)
    asked: dict[str, Any] = {"ids": rows} if isinstance(rows[0], list) else {"texts": rows}
    vectors = await client.embed(**asked, model=model.name, **parameters, **options)
    vectors = _shortened(vectors, body.dimensions, model.normalizes(settings))
    # Counted only now, as requests that are refused may be long.
    tokens = (
        sum(map(len, rows))
        if "ids" in asked
        else await model.count("input", asked["texts"], settings)
    )
    return _answer(vectors, model, body, tokens), tokens


async def _of_images(
    client: AsyncClient, model: ImageEncoder, body: EmbeddingRequest, options: Mapping[str, Any]
) -> Computed:
    items = body.input
    if any(isinstance(item, list) for item in items):
        wanted = "texts or images, as the model takes no ids"
        raise InvalidInput("input", "token ids", wanted, "send the texts")
    if body.prompt_name is not None or body.input_type is not None:
        field = "prompt_name" if body.prompt_name is not None else "input_type"
        got, wanted = "it for a model of images", "none, as the model has no prompts"
        raise InvalidInput(field, got, wanted, "remove it")
    if body.truncate_prompt_tokens not in (None, -1):
        most, wanted = body.truncate_prompt_tokens, "-1, the model's limit"
        raise InvalidInput("truncate_prompt_tokens", most, wanted, "correct or remove it")
    parameters = encoder_parameters(model, body.given(), body.truncate_prompt_tokens)
    settings = model.request_settings(parameters)
    vectors = await embedded(client, model, items, {**parameters, **options})
    _check_dimensions(body, vectors.shape[1])
    vectors = _shortened(vectors, body.dimensions, model.normalizes(settings))
    texts = [item for item in items if isinstance(item, str)]
    tokens = await model.counted("input", texts, model.max_length) if texts else 0
    return _answer(vectors, model, body, tokens), tokens


def _answer(
    vectors: NDArray[np.float32], model: Served, body: EmbeddingRequest, tokens: int
) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, body)}
            for index, vector in enumerate(vectors)
        ],
        "model": model.name,
        "usage": usage(tokens),
    }


def _check_dimensions(body: EmbeddingRequest, width: int) -> None:
    if body.dimensions is not None and body.dimensions > width:
        wanted = f"at most {width}, as many as the model's vectors have"
        raise InvalidInput("dimensions", body.dimensions, wanted, "lower or remove it")


def _prompt_name(model: Encoder, body: EmbeddingRequest) -> str | None:
    if body.input_type is None:
        return body.prompt_name
    if body.prompt_name is not None or "prompt" in body.given():
        raise InvalidInput(
            "input_type", "input_type together with a prompt", "one of them", "drop one"
        )
    fitting = (name for name in _PROMPTS_OF[body.input_type] if name in model.files.prompts)
    return next(fitting, None)


def _shortened(
    vectors: NDArray[np.float32], width: int | None, normalized: bool
) -> NDArray[np.float32]:
    """Returns the first `width` elements of each vector (None: all), rescaled to length 1 if it was
    1."""
    if width in (None, vectors.shape[1]):
        return vectors
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
