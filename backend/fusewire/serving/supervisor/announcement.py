"""The message that `serve` prints when it is ready: the models, the addresses, and how to send
requests."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fusewire import __version__
from fusewire.precision import Precision
from fusewire.serving import model_config, repository
from fusewire.serving.probe import Probe, stored_probe
from fusewire.serving.supervisor.server import Server
from fusewire.tasks.contract import GENERATING, TRANSCRIBE
from fusewire.text.tokenizer_files import tokenizer_file

_PROMPT = "Once upon a time"
_TEXTS = ("text_input", "text_pair")
_INFO = re.compile(r"^fusewire_model_info\{(.*)\} 1$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Served:
    """A model's description. `task` and `dtype` are empty for models of other backends."""

    name: str
    task: str
    device: str
    dtype: str


def facts(server: Server) -> dict[str, Any]:
    """Returns the values for programs: the event `ready` of `--json`, and the fields of its log
    line."""
    at = server.endpoint
    return {
        "models": server.models,
        "devices": {model: server.device(model) for model in server.models},
        "left_out": server.left_out,
        "http": f"{at.host}:{at.http_port}",
        "grpc": f"{at.host}:{at.grpc_port}",
        "metrics": f"{at.host}:{at.metrics_port}/metrics",
        "openai": server.openai and server.openai.address,
    }


def lines(server: Server) -> Iterator[str]:
    """Yields the lines for people, with commands that query the first model."""
    at = server.endpoint
    rows = [_served(server, model) for model in server.models]
    yield f"fusewire {__version__} is ready"
    yield ""
    yield from _table([("MODEL", "TASK", "DEVICE", "DTYPE"), *(vars(row).values() for row in rows)])
    if server.left_out:
        yield f"not served, as there are no weights: {', '.join(server.left_out)}"
    yield ""
    ports = [
        ("HTTP", f"http://{at.host}:{at.http_port}"),
        ("gRPC", f"{at.host}:{at.grpc_port}"),
        ("Metrics", f"http://{at.host}:{at.metrics_port}/metrics"),
    ]
    if server.openai is not None:
        ports.append(("OpenAI", f"http://{server.openai.address}/v1"))
    yield from _table(ports)
    asked = next((row for row in rows if row.task), None)
    if asked is not None:
        yield ""
        yield "Try:"
        yield from (f"  {each}" for each in _commands(server, asked, only=len(rows) == 1))
    yield ""
    yield "Press Ctrl-C to stop."


def _served(server: Server, model: str) -> Served:
    config = model_config.read(server.entry(model) / repository.CONFIG)
    device = model_config.places(config)
    if config.backend != model_config.BACKEND:
        return Served(model, "", device, "")
    settings = model_config.check(config, model)
    asked = Precision.of(device, settings.dtype, settings.quantize).described
    return Served(model, settings.task, device, " or ".join(_precisions(server, model)) or asked)


def _precisions(server: Server, model: str) -> Iterator[str]:
    """Yields the precisions that the model's instances report, with a note where they dequantised
    the weights of a quantised folder. Yields nothing where the metrics cannot be read."""
    folder = repository.served_version(server.entry(model))
    method = repository.quantized_as(folder) if folder else None
    try:
        page = server.endpoint.metrics()
    except (OSError, http.client.HTTPException):
        return
    found = (dict(_LABEL.findall(labels)) for labels in _INFO.findall(page))
    for each in dict.fromkeys(one["precision"] for one in found if one["model"] == model):
        dequantised = method is not None and " weights" not in each
        yield f"{each}, {method} dequantised" if dequantised else each


def _table(rows: list[Any]) -> Iterator[str]:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {line}".rstrip()


def _commands(server: Server, asked: Served, *, only: bool) -> Iterator[str]:
    """Yields commands that query a model with the texts of its probe, or with ids without a
    tokenizer."""
    at = server.endpoint
    folder = repository.served_version(server.entry(asked.name))
    question = Probe(asked.task, tuple(stored_probe(server.entry(asked.name), asked.task)))
    texts = [str(each.values[0]) for each in question.tensors if each.name in _TEXTS]
    body: dict[str, object] | None = question.json()
    if asked.task == TRANSCRIBE:
        texts, body = ["speech.wav"], None
    elif asked.task in GENERATING and folder and tokenizer_file(folder) is not None:
        texts = [_PROMPT]
        body = {"text_input": _PROMPT, "parameters": {"max_new_tokens": 20}}
    if any(each.name == "pixel_values" for each in question.tensors):
        texts, body = ["photo.jpg"], None  # curl cannot put the bytes of a file into JSON
    if texts:
        words = [asked.task, texts[0], *(["--second", texts[1]] if texts[1:] else [])]
        words += [] if only else ["--model", asked.name]
        words += [] if at.grpc_port == 8001 else ["--address", f"{at.reachable}:{at.grpc_port}"]
        yield f"fusewire ask {shlex.join(words)}"
    if question.tensors and body is not None:
        url = f"http://{at.reachable}:{at.http_port}/v2/models/{asked.name}/{question.path}"
        sent = shlex.quote(json.dumps(body, ensure_ascii=False))
        yield f"curl {url} -H 'Content-Type: application/json' -d {sent}"
