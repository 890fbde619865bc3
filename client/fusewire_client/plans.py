"""The methods of both clients: what to ask, and how to read the answers. Nothing here waits.

Common keyword arguments of the task methods:
    ids: token ids instead of texts, a list of lists (one request each) or an integer array
        [n, length] (one request); attention_mask, token_type_ids: of the same shapes.
    model, version: which model; without a name, the server's only model that does the task.
    timeout_s: for this call, retries included, instead of the client's.
    **parameters: request parameters, checked by the server: truncate, normalize, pooling, top_k, …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import replies
from .answers import Answer, Candidate, Classification, Entity, ModelInfo, ModelStatistics
from .calls import Ask, Infer, Parameter, Plan
from .errors import InvalidArgument, NotFound, Unavailable
from .tensors import Ids, Inputs, requests_of, text_requests

Arrays = dict[str, np.ndarray]


@dataclass
class Settings:
    """What a plan knows of its client. `found` remembers the model of a task."""

    model: str | None
    max_batch: int
    found: dict[str, str]


class Where(NamedTuple):
    """Which model is asked, with what parameters, for how long."""

    model: str | None
    version: str
    timeout_s: float | None
    parameters: dict[str, Parameter]


def ready(
    settings: Settings, /, model: str = "", *, version: str = "", timeout_s: float | None = None
) -> Plan[bool]:
    """Whether the server, or one model, takes requests; False when it cannot be reached."""
    try:
        answers = yield [Ask("ready", model, version, timeout_s)]
    except Unavailable:
        return False
    return bool(answers[0]["ready"])


def models(settings: Settings, /, *, timeout_s: float | None = None) -> Plan[list[ModelInfo]]:
    """The loaded models. Read from the statistics: the repository API is for administrators."""
    loaded: dict[str, list[str]] = {}
    for one in (yield from statistics(settings, timeout_s=timeout_s)):
        loaded.setdefault(one.name, []).append(one.version)
    answers = yield [Ask("metadata", name, timeout_s=timeout_s) for name in loaded]
    return [
        ModelInfo(
            name,
            tuple(loaded[name]),
            tuple(tensor["name"] for tensor in answer.get("inputs", [])),
            tuple(tensor["name"] for tensor in answer.get("outputs", [])),
        )
        for name, answer in zip(loaded, answers, strict=True)
    ]


def statistics(
    settings: Settings, /, model: str = "", *, timeout_s: float | None = None
) -> Plan[list[ModelStatistics]]:
    """The server's counters, one record a model version; of one model where it is named."""
    answers = yield [Ask("statistics", model, timeout_s=timeout_s)]
    return [ModelStatistics.of(record) for record in answers[0].get("model_stats", [])]


def infer(
    settings: Settings,
    /,
    model: str,
    inputs: Mapping[str, np.ndarray],
    *,
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Parameter] | None = None,
    version: str = "",
    request_id: str = "",
    timeout_s: float | None = None,
) -> Plan[Arrays]:
    """One request to any model, tensors in and out as they are; STRING tensors hold bytes."""
    call = Infer(model, inputs, outputs, dict(parameters or {}), version, request_id, timeout_s)
    outputs_of: list[Arrays] = yield [call]
    return outputs_of[0]


def embed(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[np.ndarray]:
    """float32 [n, dim], a row a sequence."""
    requests = requests_of(texts, None, ids, attention_mask, token_type_ids, settings.max_batch)
    where = Where(model, version, timeout_s, parameters)
    answers = yield from _ask(settings, "embed", requests, ["embedding"], where)
    return np.concatenate([answer["embedding"] for answer in answers])


def hidden(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[np.ndarray]]:
    """The last hidden state: float32 [tokens, hidden] for each sequence, one request a text."""
    requests = requests_of(texts, None, ids, attention_mask, token_type_ids, 1)
    where = Where(model, version, timeout_s, parameters)
    answers = yield from _ask(settings, "hidden", requests, ["last_hidden_state"], where)
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
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Classification]]:
    """Label and scores of each text, or of each (text, pair): a reranker's query and passage."""
    requests = requests_of(texts, pairs, ids, attention_mask, token_type_ids, settings.max_batch)
    where = Where(model, version, timeout_s, parameters)
    answers = yield from _ask(settings, "classify", requests, ["label", "scores"], where)
    return [
        Classification(label.decode(), np.array(scores))
        for answer in answers
        for label, scores in zip(answer["label"].reshape(-1), answer["scores"], strict=True)
    ]


def tag(
    settings: Settings,
    /,
    texts: Sequence[str] | None = None,
    *,
    ids: Ids | None = None,
    attention_mask: Ids | None = None,
    token_type_ids: Ids | None = None,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[list[Entity]]]:
    """The entities of each text, in the order of the text."""
    requests = requests_of(texts, None, ids, attention_mask, token_type_ids, settings.max_batch)
    where = Where(model, version, timeout_s, parameters)
    answers = yield from _ask(settings, "tag", requests, ["entities"], where)
    return [
        replies.parsed(text, "entities", replies.entities) for text in _strings(answers, "entities")
    ]


def answer(
    settings: Settings,
    /,
    question: str,
    context: str,
    *,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[Answer]:
    """The span of the context that answers the question best."""
    where = Where(model, version, timeout_s, {**parameters, "top_k": 1})
    return (yield from _answers(settings, question, context, where))[0]


def answers(
    settings: Settings,
    /,
    question: str,
    context: str,
    top_k: int = 5,
    *,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Answer]]:
    """The `top_k` best spans, best first."""
    where = Where(model, version, timeout_s, {**parameters, "top_k": top_k})
    return (yield from _answers(settings, question, context, where))


def fill(
    settings: Settings,
    /,
    text: str,
    top_k: int = 5,
    *,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[Candidate]]:
    """The `top_k` likeliest tokens for the text's one mask token, likeliest first."""
    where = Where(model, version, timeout_s, {**parameters, "top_k": top_k})
    masks = yield from _fills(settings, text, where)
    if len(masks) != 1:
        raise InvalidArgument(f"text: got {len(masks)} masks, wanted one; call fill_masks for more")
    return masks[0]


def fill_masks(
    settings: Settings,
    /,
    text: str,
    top_k: int = 5,
    *,
    model: str | None = None,
    version: str = "",
    timeout_s: float | None = None,
    **parameters: Parameter,
) -> Plan[list[list[Candidate]]]:
    """As `fill`, for a text with any number of masks: a list for each, in the text's order."""
    where = Where(model, version, timeout_s, {**parameters, "top_k": top_k})
    return (yield from _fills(settings, text, where))


def _answers(settings: Settings, question: str, context: str, where: Where) -> Plan[list[Answer]]:
    requests = text_requests([question], [context], 1)
    outputs = yield from _ask(settings, "answer", requests, ["answer"], where)
    return replies.parsed(_strings(outputs, "answer")[0], "answer", replies.spans)


def _fills(settings: Settings, text: str, where: Where) -> Plan[list[list[Candidate]]]:
    requests = text_requests([text], None, 1)
    outputs = yield from _ask(settings, "fill", requests, ["candidates"], where)
    return replies.parsed(_strings(outputs, "candidates")[0], "candidates", replies.masks)


def _ask(
    settings: Settings, task: str, requests: list[Inputs], outputs: list[str], where: Where
) -> Plan[list[Arrays]]:
    name = yield from model_for(settings, where.model, task, where.timeout_s)
    return (
        yield [
            Infer(name, inputs, outputs, where.parameters, where.version, "", where.timeout_s)
            for inputs in requests
        ]
    )


def model_for(
    settings: Settings, model: str | None, task: str, timeout_s: float | None
) -> Plan[str]:
    """The model named, or the client's, or the server's only one that does the task."""
    return model or settings.model or (yield from _find(settings, task, timeout_s))


def _find(settings: Settings, task: str, timeout_s: float | None) -> Plan[str]:
    if task not in settings.found:
        loaded = yield from models(settings, timeout_s=timeout_s)
        fitting = [model.name for model in loaded if model.task == task]
        if not fitting:
            there = ", ".join(f"{m.name} ({m.task or 'other'})" for m in loaded) or "none"
            raise NotFound(f"model: got {there}, wanted one that does {task!r}; load one")
        if len(fitting) > 1:
            raise InvalidArgument(
                f"model: got {len(fitting)} that do {task!r} ({', '.join(fitting)}), wanted one; "
                "name it with model=…"
            )
        settings.found[task] = fitting[0]
    return settings.found[task]


def _strings(answers: list[Arrays], output: str) -> list[bytes]:
    return [text for one in answers for text in one[output].reshape(-1)]
