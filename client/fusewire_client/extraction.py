"""The methods of both clients for what models find in texts, as plans without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from . import replies
from .answers import Answer, Candidate, Entity
from .asking import Where, ask, given, strings
from .calls import Parameter, Plan
from .errors import InvalidArgument
from .plans import Settings
from .tensors import Ids, requests_of, text_requests

Aggregation = Literal["none", "simple", "first", "average", "max"]


def tag(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    truncate: bool | None = None,
    max_length: int | None = None,
    aggregation_strategy: Aggregation | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[list[Entity]]]:
    """Returns the entities of each text, in the order of the text. `aggregation_strategy`: how
    tokens are grouped into entities, as in transformers. The other arguments are those of
    `embed`."""
    requests = requests_of(texts, None, ids, attention_mask, token_type_ids, settings.max_batch)
    asked = given(
        parameters,
        truncate=truncate,
        max_length=max_length,
        aggregation_strategy=aggregation_strategy,
    )
    where = Where(model, version, timeout_s, asked)
    answers = yield from ask(settings, "tag", requests, ["entities"], where)
    return [
        replies.parsed(text, "entities", replies.entities) for text in strings(answers, "entities")
    ]


def answer(
    settings: Settings,
    /,
    question: str,
    context: str,
    *,
    doc_stride: int | None = None,
    max_answer_len: int | None = None,
    handle_impossible_answer: bool | None = None,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[Answer]:
    """Returns the span of the context that answers the question best.

    Args:
        question: The question.
        context: The text that has the answer; a long one is split into windows.
        doc_stride: Number of tokens that neighbouring windows share.
        max_answer_len: Longest answer, in tokens.
        handle_impossible_answer: Allow the empty answer.
        max_length: Maximum length of a window, in tokens.
        model: Its name; default: the server's only model that answers.
        version: Version of the model; default: the server's choice.
        timeout_s: Timeout of this call with its retries, in seconds; default: the client's.
        **parameters: Further parameters of the request, checked by the server.
    """
    if "top_k" in parameters:
        raise InvalidArgument("top_k: got it for the best answer alone, wanted none; call answers")
    found = yield from answers(
        settings,
        question,
        context,
        1,
        doc_stride=doc_stride,
        max_answer_len=max_answer_len,
        handle_impossible_answer=handle_impossible_answer,
        max_length=max_length,
        model=model,
        version=version,
        timeout_s=timeout_s,
        **parameters,
    )
    return found[0]


def answers(
    settings: Settings,
    /,
    question: str,
    context: str,
    top_k: int = 5,
    *,
    doc_stride: int | None = None,
    max_answer_len: int | None = None,
    handle_impossible_answer: bool | None = None,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Answer]]:
    """Returns the `top_k` best spans, best first; the other arguments are those of `answer`."""
    asked = given(
        parameters,
        top_k=top_k,
        doc_stride=doc_stride,
        max_answer_len=max_answer_len,
        handle_impossible_answer=handle_impossible_answer,
        max_length=max_length,
    )
    where = Where(model, version, timeout_s, asked)
    requests = text_requests([question], [context], 1)
    outputs = yield from ask(settings, "answer", requests, ["answer"], where)
    return replies.parsed(strings(outputs, "answer")[0], "answer", replies.spans)


def fill(
    settings: Settings,
    /,
    text: str,
    top_k: int = 5,
    *,
    truncate: bool | None = None,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Candidate]]:
    """Returns the `top_k` likeliest tokens for the text's one mask token, likeliest first; the
    other arguments are those of `embed`."""
    masks = yield from fill_masks(
        settings,
        text,
        top_k,
        truncate=truncate,
        max_length=max_length,
        model=model,
        version=version,
        timeout_s=timeout_s,
        **parameters,
    )
    if len(masks) != 1:
        raise InvalidArgument(f"text: got {len(masks)} masks, wanted one; call fill_masks for more")
    return masks[0]


def fill_masks(
    settings: Settings,
    /,
    text: str,
    top_k: int = 5,
    *,
    truncate: bool | None = None,
    max_length: int | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[list[Candidate]]]:
    """As `fill`, for a text with any number of masks: returns one list per mask, in the text's
    order."""
    asked = given(parameters, top_k=top_k, truncate=truncate, max_length=max_length)
    where = Where(model, version, timeout_s, asked)
    outputs = yield from ask(
        settings, "fill", text_requests([text], None, 1), ["candidates"], where
    )
    return replies.parsed(strings(outputs, "candidates")[0], "candidates", replies.masks)
