"""The answers to each task as `fusewire ask` shows them: lines for people, records for machines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from fusewire.errors import ConfigurationError, counted

Shown = tuple[list[str], list[dict[str, Any]]]  # lines, records

# The tasks whose answer is a text, which can be streamed.
STREAMED = ("generate", "chat", "translate", "summarise", "transcribe")


def generated(client: Any, task: str, text: str, /, **arguments: Any) -> Any:
    """Returns the client's answer for one text, one message to chat with, or one audio file."""
    given = [{"role": "user", "content": text}] if task == "chat" else text
    return _asked(getattr(client, task), given, **arguments)


def _asked(method: Callable[..., Any], /, *inputs: Any, **parameters: Any) -> Any:
    """Returns the client's answer. Raises ConfigurationError for parameters that `ask` passes
    itself."""
    try:
        inspect.signature(method).bind(*inputs, **parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"parameter: got {error}, wanted those of the model alone; leave it out"
        ) from None
    return method(*inputs, **parameters)


def embed(
    client: Any,
    texts: list[str],
    second: list[str],
    parameters: dict[str, Any],
    given: str = "texts",
) -> Shown:
    _none("embed", second)
    if given == "texts":
        vectors = _asked(client.embed, texts, **parameters)
    else:
        vectors = _asked(client.embed, **parameters | {given: texts})
    lines, records = [], []
    for index, (text, vector) in enumerate(zip(texts, vectors, strict=True), 1):
        start = ", ".join(f"{value:.3f}" for value in vector[:4])
        lines.append(f"{index}  {text}  [{start}, …] {len(vector)} numbers")
        records.append({given.removesuffix("s"): text, "embedding": vector.tolist()})
    if len(texts) > 1:
        norms = (vectors * vectors).sum(1) ** 0.5
        cosines = vectors @ vectors.T / norms[:, None] / norms[None, :]
        lines += ["", "similarity  " + "".join(f"{n + 1:>7}" for n in range(len(texts)))]
        for index, row in enumerate(cosines, 1):
            lines.append(f"{index:>10}  " + "".join(f"{value:7.2f}" for value in row))
    return lines, records


def _hidden(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    _none("hidden", second)
    states = _asked(client.hidden, texts, **parameters)
    lines, records = [], []
    for text, state in zip(texts, states, strict=True):
        lines.append(f"{text}: {counted(state.shape[0], 'tokens')} of {state.shape[1]} numbers")
        records.append({"text": text, "last_hidden_state": state.tolist()})
    return lines, records


def _classify(
    client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]
) -> Shown:
    found = _asked(client.classify, texts, second or None, **parameters)
    return _labelled(
        "text", texts, found, lambda scores: ", ".join(f"{score:.3f}" for score in scores)
    )


def _label(client: Any, files: list[str], labels: list[str], parameters: dict[str, Any]) -> Shown:
    found = _asked(client.label, files, labels or None, **parameters)
    return _labelled("image", files, found, lambda scores: f"{scores.max():.3f}")


def _labelled(kind: str, inputs: list[str], found: list[Any], shown: Callable[[Any], str]) -> Shown:
    lines, records = [], []
    for each, one in zip(inputs, found, strict=True):
        lines.append(f"{each}: {one.label} ({shown(one.scores)})")
        records.append({kind: each, "label": one.label, "scores": one.scores.tolist()})
    return lines, records


def _tag(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    _none("tag", second)
    lines: list[str] = []
    records = []
    for text, entities in zip(texts, _asked(client.tag, texts, **parameters), strict=True):
        lines.append(text)
        lines += [f"  {one.entity}: {one.word} ({one.score:.3f})" for one in entities] or [
            "  no entities"
        ]
        records.append({"text": text, "entities": [vars(one) for one in entities]})
    return lines, records


def _answer(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    if len(texts) != 1 or len(second) != 1:
        raise ConfigurationError(
            f"answer: got {counted(len(texts), 'questions')} and "
            f"{counted(len(second), 'contexts')}, wanted one each; "
            "fusewire ask answer QUESTION --second CONTEXT"
        )
    if parameters.get("top_k", 1) == 1:
        found = [_asked(client.answer, texts[0], second[0], **parameters)]
    else:
        found = _asked(client.answers, texts[0], second[0], **parameters)
    return [f"{one.text} ({one.score:.3f})" for one in found], [vars(one) for one in found]


def _fill(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    _none("fill", second)
    lines: list[str] = []
    records = []
    for text in texts:
        masks = _asked(client.fill_masks, text, **parameters)
        for number, candidates in enumerate(masks, 1):
            lines += [f"mask {number} of {len(masks)}:"] if len(masks) > 1 else []
            lines += [f"{one.sequence} ({one.score:.3f})" for one in candidates]
        found = [[vars(one) for one in candidates] for candidates in masks]
        records.append({"text": text, "candidates": found if len(found) > 1 else found[0]})
    return lines, records


def _rerank(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    _none("rerank", second)
    query, *documents = texts
    if not documents:
        raise ConfigurationError(
            "rerank: got a query alone, wanted documents too; fusewire ask rerank QUERY DOCUMENT …"
        )
    found = _asked(client.rerank, query, documents, **parameters)
    return [f"{one.score:.3f}  {one.text}" for one in found], [vars(one) for one in found]


def _generated(
    task: str, client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]
) -> Shown:
    _none(task, second)
    lines, records = [], []
    for text in texts:
        found = generated(client, task, text, details=True, **parameters)
        several = found if isinstance(found, list) else [found]  # with n
        outputs = [one.text for one in several]
        scores = [one.score for one in several if one.score is not None]  # of beam search
        lines += outputs
        record = {"text": text, "output": outputs if found is several else outputs[0]}
        if scores:
            record["sequences_scores"] = scores
        if several[0].language is not None:
            record["language"] = several[0].language
        for name, plain in _DETAILS.items():
            came = [getattr(one, name) for one in several]
            if None not in came:
                values = [plain(each) for each in came]
                record[name] = values if found is several else values[0]
        records.append(record)
    return lines, records


def _tokens(logprobs: list[Any]) -> list[Any]:
    """Returns the alternatives of each token by token id; null for a prompt's first token."""
    return [each and {id_: asdict(one) for id_, one in each.items()} for each in logprobs]


def _alignment(alignment: Any) -> dict[str, Any]:
    return vars(alignment) | {"weights": alignment.weights.tolist()}


def _segments(segments: list[Any]) -> list[dict[str, Any]]:
    """Returns segments without the fields that were not requested. A time without a timestamp is
    null."""
    always = ("start", "end")
    return [
        {name: v for name, v in asdict(each).items() if v is not None or name in always}
        for each in segments
    ]


# Fields that may come with a text -> the function that converts them to JSON.
_DETAILS: dict[str, Callable[[Any], Any]] = {
    "finish_reason": str,
    "usage": asdict,
    "cumulative_logprob": float,
    "logprobs": _tokens,
    "prompt_logprobs": _tokens,
    "alignment": _alignment,
    "segments": _segments,
}


def _none(task: str, second: list[str]) -> None:
    if second:
        raise ConfigurationError(f"second: got a text, wanted none for {task}; leave it out")


TASKS: dict[str, Callable[[Any, list[str], list[str], dict[str, Any]], Shown]] = {
    "embed": embed,
    "rerank": _rerank,
    "classify": _classify,
    "label": _label,
    "tag": _tag,
    "answer": _answer,
    "fill": _fill,
    "hidden": _hidden,
    **{task: partial(_generated, task) for task in STREAMED},
}
