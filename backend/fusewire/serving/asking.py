"""`fusewire ask`: a running server's answers as text, through the client package."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from fusewire.errors import ConfigurationError, FusewireError, counted

Shown = tuple[list[str], list[dict[str, Any]]]  # lines for people, records for machines

# What the client's errors name in Python's words, and how the command line says it.
_FLAGS = {
    "model=…": "--model",
    "protocol='grpc'": "leave out --protocol",
    "protocol='http'": "--protocol http",
    "wanted host:port; choose by protocol= and tls=": "wanted HOST:PORT alone; write it so",
}
# Names, which may look like numbers.
_NAMES = ("model", "version")


class AskFailed(FusewireError):
    """The client's error, with its message."""


def ask(
    task: str,
    texts: Sequence[str],
    second: Sequence[str],
    address: str,
    protocol: str,
    model: str | None,
    parameters: dict[str, Any],
    *,
    images: bool = False,
) -> Shown:
    """Sends one request of a task and returns the answer to show.

    `texts`: of rerank the query, then the documents; of label, and of embed with `images`, paths of
    files. `second`: the second texts of pairs, the context of a question, or the labels to choose
    from.
    """
    if images and task not in ("embed", "label"):
        raise ConfigurationError(f"images: got them for {task}, wanted embed or label; drop them")
    with _connected(task, address, protocol, model) as client:
        if images and task == "embed":
            return _embed(client, list(texts), list(second), parameters, given="images")
        return _TASKS[task](client, list(texts), list(second), parameters)


def streams(task: str, parameters: dict[str, Any]) -> bool:
    """Whether the answer to each text comes as `pieces`: one text, so that they join to it."""
    several = parameters.get("n", parameters.get("num_return_sequences"))
    return task in STREAMED and several in (None, 1)


def pieces(
    task: str,
    texts: Sequence[str],
    address: str,
    protocol: str,
    model: str | None,
    parameters: dict[str, Any],
) -> Iterator[str]:
    """What a model generates after each prompt, or answers to each message, in pieces as they come,
    a line's end after each. `streams` says when."""
    with _connected(task, address, protocol, model) as client:
        for text in texts:
            yield from STREAMED[task](client, text, stream=True, **parameters)
            yield "\n"


@contextmanager
def _connected(task: str, address: str, protocol: str, model: str | None) -> Iterator[Any]:
    """A client of the server; its errors become ours."""
    if task not in _TASKS:
        raise ConfigurationError(
            f"task: got {task!r}, wanted one of {', '.join(_TASKS)}; choose one of these"
        )
    try:
        import fusewire_client
    except ImportError:
        raise ConfigurationError(
            "fusewire_client: not installed, wanted for `ask`; pip install ./client"
        ) from None
    try:
        with fusewire_client.Client(address, protocol=protocol, model=model, retries=0) as client:  # type: ignore[arg-type]
            try:
                yield client
            except fusewire_client.Unavailable as error:
                if client.ready():
                    raise
                reason = str(error).rpartition(": ")[2]
                raise AskFailed(
                    f"address: got no server that is ready at {address} ({reason}), wanted one; "
                    "start it with `fusewire serve`, or name another with --address"
                ) from None
    except fusewire_client.ClientError as error:
        message = str(error)
        for theirs, ours in _FLAGS.items():
            message = message.replace(theirs, ours)
        raise AskFailed(message) from None


def _asked(method: Callable[..., Any], /, *inputs: Any, **parameters: Any) -> Any:
    """The client's answer; parameters named as what `ask` itself hands over are refused."""
    try:
        inspect.signature(method).bind(*inputs, **parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"parameter: got {error}, wanted those of the model alone; leave it out"
        ) from None
    return method(*inputs, **parameters)


def _embed(
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
    lines = []
    for index, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        start = ", ".join(f"{value:.3f}" for value in vector[:4])
        lines.append(f"{index + 1}  {text}  [{start}, …] {len(vector)} numbers")
    if len(texts) > 1:
        norms = (vectors * vectors).sum(1) ** 0.5
        cosines = vectors @ vectors.T / norms[:, None] / norms[None, :]
        lines += ["", "similarity  " + "".join(f"{n + 1:>7}" for n in range(len(texts)))]
        for index, row in enumerate(cosines):
            lines.append(f"{index + 1:>10}  " + "".join(f"{value:7.2f}" for value in row))
    records = [
        {given.removesuffix("s"): text, "embedding": vector.tolist()}
        for text, vector in zip(texts, vectors, strict=True)
    ]
    return lines, records


def _hidden(client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]) -> Shown:
    _none("hidden", second)
    states = _asked(client.hidden, texts, **parameters)
    lines = [
        f"{text}: {counted(state.shape[0], 'tokens')} of {state.shape[1]} numbers"
        for text, state in zip(texts, states, strict=True)
    ]
    records = [
        {"text": text, "last_hidden_state": state.tolist()}
        for text, state in zip(texts, states, strict=True)
    ]
    return lines, records


def _classify(
    client: Any, texts: list[str], second: list[str], parameters: dict[str, Any]
) -> Shown:
    found = _asked(client.classify, texts, second or None, **parameters)
    lines = [
        f"{text}: {one.label} ({', '.join(f'{score:.3f}' for score in one.scores)})"
        for text, one in zip(texts, found, strict=True)
    ]
    records = [
        {"text": text, "label": one.label, "scores": one.scores.tolist()}
        for text, one in zip(texts, found, strict=True)
    ]
    return lines, records


def _label(client: Any, files: list[str], labels: list[str], parameters: dict[str, Any]) -> Shown:
    found = _asked(client.label, files, labels or None, **parameters)
    lines = [
        f"{file}: {one.label} ({one.scores.max():.3f})"
        for file, one in zip(files, found, strict=True)
    ]
    records = [
        {"image": file, "label": one.label, "scores": one.scores.tolist()}
        for file, one in zip(files, found, strict=True)
    ]
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
        candidates = _asked(client.fill, text, **parameters)
        lines += [f"{one.sequence} ({one.score:.3f})" for one in candidates]
        records.append({"text": text, "candidates": [vars(one) for one in candidates]})
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
        found = STREAMED[task](client, text, details=True, **parameters)
        several = found if isinstance(found, list) else [found]  # where n is given
        outputs = [one.text for one in several]
        scores = [one.score for one in several if one.score is not None]  # of beams
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
    """Of each token, by token id; null for a prompt's first."""
    return [each and {id_: asdict(one) for id_, one in each.items()} for each in logprobs]


def _alignment(alignment: Any) -> dict[str, Any]:
    return vars(alignment) | {"weights": alignment.weights.tolist()}


def _segments(segments: list[Any]) -> list[dict[str, Any]]:
    """Without what was not asked for; a time that no timestamp says is null."""
    always = ("start", "end")
    return [
        {name: v for name, v in asdict(each).items() if v is not None or name in always}
        for each in segments
    ]


# What may have come with a text, and how JSON shows it.
_DETAILS: dict[str, Callable[[Any], Any]] = {
    "finish_reason": str,
    "usage": asdict,
    "cumulative_logprob": float,
    "logprobs": _tokens,
    "prompt_logprobs": _tokens,
    "alignment": _alignment,
    "segments": _segments,
}


def _generate(client: Any, prompt: str, /, **arguments: Any) -> Any:
    return _asked(client.generate, prompt, **arguments)


def _chat(client: Any, message: str, /, **arguments: Any) -> Any:
    return _asked(client.chat, [{"role": "user", "content": message}], **arguments)


def _none(task: str, second: list[str]) -> None:
    if second:
        raise ConfigurationError(f"second: got a text, wanted none for {task}; leave it out")


def _translate(client: Any, text: str, /, **arguments: Any) -> Any:
    return _asked(client.translate, text, **arguments)


def _summarise(client: Any, text: str, /, **arguments: Any) -> Any:
    return _asked(client.summarise, text, **arguments)


def _transcribe(client: Any, path: str, /, **arguments: Any) -> Any:
    return _asked(client.transcribe, path, **arguments)


STREAMED: dict[str, Callable[..., Any]] = {
    "generate": _generate,
    "chat": _chat,
    "translate": _translate,
    "summarise": _summarise,
    "transcribe": _transcribe,
}
_TASKS: dict[str, Callable[[Any, list[str], list[str], dict[str, Any]], Shown]] = {
    "embed": _embed,
    "rerank": _rerank,
    "classify": _classify,
    "label": _label,
    "tag": _tag,
    "answer": _answer,
    "fill": _fill,
    "hidden": _hidden,
    **{task: partial(_generated, task) for task in STREAMED},
}


def read_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` as request parameters: JSON values as such, anything else as text."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError(
                f"parameter: got {pair!r}, wanted KEY=VALUE; for example truncate=true"
            )
        if key in ("details", "stream"):
            raise ConfigurationError(
                f"parameter: got {key}, wanted one of the model's, as `ask` streams by itself, and "
                "shows all that came with --json; leave it out"
            )
        try:
            parameters[key] = value if key in _NAMES else json.loads(value)
        except ValueError:
            parameters[key] = value
    return parameters
