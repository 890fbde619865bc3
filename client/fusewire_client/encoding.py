"""The methods of both clients for vectors and scores of texts and images, as plans without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .answers import Classification, Ranked
from .asking import Where, ask, given
from .calls import Parameter, Plan
from .errors import InvalidArgument
from .images import Image, PixelValues, image_requests, pixel_requests, with_labels
from .plans import Arrays, Settings
from .tensors import Ids, Inputs, requests_of, text_requests

Pooling = Literal["cls", "mean", "max", "last"]
ScoreFunction = Literal["none", "sigmoid", "softmax"]


def embed(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    images: Image | Sequence[Image] | None = None,
    pixel_values: PixelValues | None = None,
    truncate: bool | None = None,
    max_length: int | None = None,
    normalize: bool | None = None,
    pooling: Pooling | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[NDArray[np.float32]]:
    """Returns vectors of texts, of token ids, or of images, in their order.

    Args:
        texts: The texts.
        ids: Token ids instead: a list of lists (one request each) or an array [n, length].
        attention_mask: 1 for tokens, 0 for padding; of the shape of `ids`.
        token_type_ids: Segment of each token; of the shape of `ids`.
        images: Files or their bytes (JPEG, PNG, WebP) instead, for a model of images: one or a
            list.
        pixel_values: The output of an image processor instead: an array
            [n, 3, height, width], or a list of [3, height, width] (one request each).
        truncate: Truncate texts that are too long for the model; else they are rejected.
        max_length: Maximum length in tokens; longer texts are truncated or rejected.
        normalize: Scale to length 1. Default: as the model's files say.
        pooling: How token vectors are pooled into one. Default: as the model's files say.
        prompt: Text to put in front of each text.
        prompt_name: Name of the model's prompt to put in front of each text.
        model: Its name; default: the server's only model that embeds.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call with its retries, in seconds; default: the client's.
        **parameters: Further parameters of the request, checked by the server.

    Returns:
        float32 [n, dim].

    Raises:
        ClientError: With the server's message.
    """
    if images is None and pixel_values is None:
        requests = requests_of(texts, None, ids, attention_mask, token_type_ids, settings.max_batch)
    elif texts is None and ids is None:
        requests = _of_images(images, pixel_values, settings.max_batch)
    else:
        raise InvalidArgument("images: got texts or ids too, wanted images alone; ask for each")
    asked = given(
        parameters,
        truncate=truncate,
        max_length=max_length,
        normalize=normalize,
        pooling=pooling,
        prompt=prompt,
        prompt_name=prompt_name,
    )
    where = Where(model, version, timeout_s, asked)
    answers = yield from ask(settings, "embed", requests, ["embedding"], where)
    return np.concatenate([answer["embedding"] for answer in answers])


def hidden(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    truncate: bool | None = None,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[NDArray[np.float32]]]:
    """Returns the last hidden state, float32 [tokens, hidden], of each text. Each text is one
    request. The arguments are those of `embed`."""
    requests = requests_of(texts, None, ids, attention_mask, token_type_ids, 1)
    asked = given(parameters, truncate=truncate, max_length=max_length)
    where = Where(model, version, timeout_s, asked)
    answers = yield from ask(settings, "hidden", requests, ["last_hidden_state"], where)
    return [np.array(row) for answer in answers for row in answer["last_hidden_state"]]


def classify(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    pairs: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    truncate: bool | None = None,
    max_length: int | None = None,
    function_to_apply: ScoreFunction | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Classification]]:
    """Returns label and scores of each text, or of each (text, pair).

    `pairs`: a second text for each. `function_to_apply`: how logits become scores; default: as
    transformers chooses. The other arguments are those of `embed`.
    """
    requests = requests_of(texts, pairs, ids, attention_mask, token_type_ids, settings.max_batch)
    asked = given(
        parameters, truncate=truncate, max_length=max_length, function_to_apply=function_to_apply
    )
    where = Where(model, version, timeout_s, asked)
    answers = yield from ask(settings, "classify", requests, ["label", "scores"], where)
    return _classifications(answers)


def label(
    settings: Settings,
    /,
    images: Image | Sequence[Image] | None = None,
    candidate_labels: Sequence[str] | None = None,
    *,
    pixel_values: PixelValues | None = None,
    hypothesis_template: str | None = None,
    function_to_apply: ScoreFunction | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Classification]]:
    """Returns label and scores of each image, in their order.

    Args:
        images: Files or their bytes (JPEG, PNG, WebP): one or a list.
        candidate_labels: Labels to choose from (zero-shot), for a model without labels of its own.
        pixel_values: The output of an image processor instead of images: an array
            [n, 3, height, width], or a list of [3, height, width] (one request each).
        hypothesis_template: The sentence in which each of `candidate_labels` replaces `{}`.
            Default: the model's.
        function_to_apply: How logits become scores; default: as transformers chooses.
        model: Its name; default: the server's only model that labels images.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call with its retries, in seconds; default: the client's.
        **parameters: Further parameters of the request, checked by the server.

    Returns:
        A `Classification(label, scores)` for each image.

    Raises:
        ClientError: With the server's message.
    """
    requests = _of_images(images, pixel_values, settings.max_batch)
    if candidate_labels is not None:
        requests = with_labels(requests, candidate_labels)
    asked = given(
        parameters, hypothesis_template=hypothesis_template, function_to_apply=function_to_apply
    )
    where = Where(model, version, timeout_s, asked)
    answers = yield from ask(settings, "label", requests, ["label", "scores"], where)
    return _classifications(answers)


def _of_images(
    images: Image | Sequence[Image] | None, pixel_values: PixelValues | None, most: int
) -> list[Inputs]:
    if images is not None and pixel_values is None:
        return image_requests(images, most)
    if images is None and pixel_values is not None:
        return pixel_requests(pixel_values, most)
    got = "neither" if images is None else "both"
    raise InvalidArgument(f"images, pixel_values: got {got}, wanted one of them; give images")


def _classifications(answers: Sequence[Arrays]) -> list[Classification]:
    return [
        Classification(label.decode(), np.array(scores))
        for answer in answers
        for label, scores in zip(answer["label"].reshape(-1), answer["scores"], strict=True)
    ]


def rerank(
    settings: Settings,
    /,
    query: str,
    documents: Sequence[str],
    top_k: int | None = None,
    *,
    truncate: bool = True,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Ranked]]:
    """Ranks documents by how well they answer the query, with a classifier that has one label.

    Args:
        query: The query.
        documents: The documents to rank.
        top_k: How many to return. Default: all.
        truncate: Truncate pairs that are too long for the model, the longer text first.
        max_length: Maximum length of a pair, in tokens.
        model: Its name; default: the server's only model that classifies.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call with its retries, in seconds; default: the client's.
        **parameters: Further parameters of the request, checked by the server.

    Returns:
        A `Ranked(corpus_id, score, text)` for each, best first.

    Raises:
        ClientError: With the server's message; InvalidArgument where the model has several labels.
    """
    if top_k is not None and top_k < 1:
        raise InvalidArgument(f"top_k: got {top_k}, wanted 1 or more; raise it or leave it out")
    asked = given(parameters, truncate=truncate, max_length=max_length)
    where = Where(model, version, timeout_s, asked)
    requests = text_requests([query] * len(documents), documents, settings.max_batch)
    answers = yield from ask(settings, "classify", requests, ["scores"], where)
    scores = np.concatenate([answer["scores"] for answer in answers])
    if scores.shape[1] != 1:
        raise InvalidArgument(
            f"model: got one with {scores.shape[1]} labels, wanted 1, as a reranker has; name "
            "another with model=…, or call classify"
        )
    order = np.argsort(-scores[:, 0], kind="stable")[:top_k]
    return [Ranked(int(index), float(scores[index, 0]), documents[index]) for index in order]
