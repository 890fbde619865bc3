"""/rerank and /score: the relevance of documents to a query, by a classifier with one label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusewire_client import AsyncClient
from pydantic import Field

from fusewire.errors import InvalidInput, counted
from fusewire.serving.openai.answering import Computed, beginning
from fusewire.serving.openai.bodies import MOST_TEXTS, check_count, check_text
from fusewire.serving.openai.encoding import EncoderBody, encoder_parameters, usage
from fusewire.serving.openai.errors import shown
from fusewire.serving.openai.served import Encoder

# Total of all pairs of a request: each document is sent to the model with its query.
_MOST_CHARACTERS = 1 << 24


class RankingBody(EncoderBody):
    """The common fields of both."""

    model: str | None = Field(  # type: ignore[assignment]
        default=None, description="Default: the server's only model that ranks."
    )


class RerankRequest(RankingBody):
    """The body of /rerank, /v1/rerank and /v2/rerank in Jina's and Cohere's form; with `texts` in
    TEI's."""

    query: str
    documents: list[Any] | None = Field(
        default=None, description="Texts, or objects with a field text."
    )
    top_n: int = Field(default=0, ge=0, description="Number of best results to return. 0: all.")
    return_documents: bool = Field(default=True, description="Return the documents too.")
    texts: list[Any] | None = Field(
        default=None, description="Instead of documents; the answer is a list of index and score."
    )
    raw_scores: bool = Field(default=False, description="Return logits, without an activation.")
    return_text: bool = Field(default=False, description="With texts: return them too.")


class ScoreRequest(RankingBody):
    """The body of /score and /v1/score."""

    text_1: Any = Field(description="A text that is paired with each of text_2, or a list.")
    text_2: Any = Field(description="A text, or a list: as long as text_1, if that is a list.")


async def rerank(
    client: AsyncClient, model: Encoder, body: RerankRequest, options: Mapping[str, Any]
) -> Computed:
    """Returns the answer's body, and the number of computed tokens. `options`: passed to every
    call."""
    field = "documents" if body.texts is None else "texts"
    documents = body.documents if body.texts is None else body.texts
    if documents is None or (body.documents is not None and body.texts is not None):
        got = "neither it nor texts" if documents is None else "it together with texts"
        raise InvalidInput("documents", got, "one of them", "send documents")
    texts = _texts(field, [_text(field, index, each) for index, each in enumerate(documents)])
    check_text("query", body.query)
    pairs = [(body.query, text) for text in texts]
    scores, tokens = await _scores(client, model, body, options, pairs, body.raw_scores)
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    if body.texts is not None:
        return [
            {"index": index, "score": scores[index]}
            | ({"text": texts[index]} if body.return_text else {})
            for index in ranked
        ], tokens
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in ranked[: body.top_n or None]
    ]
    answer = beginning(model.name, "rerank", "list") | {"results": results, "usage": usage(tokens)}
    return answer, tokens


async def score(
    client: AsyncClient, model: Encoder, body: ScoreRequest, options: Mapping[str, Any]
) -> Computed:
    """As `rerank`."""
    first, second = (
        _texts(field, [value] if isinstance(value, str) else value)
        for field, value in (("text_1", body.text_1), ("text_2", body.text_2))
    )
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        wanted = f"{len(first)}, as many as text_1"
        got = counted(len(second), "texts")
        raise InvalidInput("text_2", got, wanted, "send pairs, or one text_1")
    pairs = list(zip(first, second, strict=True))
    scores, tokens = await _scores(client, model, body, options, pairs)
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)]
    answer = beginning(model.name, "score", "list") | {"data": data, "usage": usage(tokens)}
    return answer, tokens


async def _scores(
    client: AsyncClient,
    model: Encoder,
    body: RankingBody,
    options: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    raw: bool = False,
) -> tuple[list[float], int]:
    """Returns (a score for each pair, the number of computed tokens)."""
    parameters: Mapping[str, Any] = {
        "function_to_apply": "none" if raw else model.score_function,
        **encoder_parameters(model, body.given(), body.truncate_prompt_tokens),
    }
    settings = model.request_settings(parameters)
    pairs = [(model.query_prompt + query, document) for query, document in pairs]
    size = sum(len(query) + len(document) for query, document in pairs)
    if size > _MOST_CHARACTERS:
        got = f"{size} characters, a query counted with each of its {len(pairs)} documents"
        wanted = f"at most {_MOST_CHARACTERS}"
        raise InvalidInput("body", got, wanted, "shorten the query, or send several requests")
    first, second = map(list, zip(*pairs, strict=True))
    found = await client.classify(first, second, model=model.name, **parameters, **options)
    tokens = await model.count("body", pairs, settings)
    return [float(each.scores[0]) for each in found], tokens


def _texts(field: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise InvalidInput(field, shown(value), "a text, or a list of them", "correct it")
    check_count(field, value, MOST_TEXTS)
    for text in value:
        check_text(field, text)
    return value


def _text(field: str, index: int, document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        got = f"{shown(document)} at {index}"
        raise InvalidInput(field, got, "texts, or objects with a field text", "correct it")
    return text
