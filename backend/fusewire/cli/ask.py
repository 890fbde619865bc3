"""`fusewire ask`: one request to a running server."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fusewire.cli.console import Json, out


def ask(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="embed, rerank, classify, tag, answer, fill, hidden, label, generate, chat, "
            "translate, summarise or transcribe.",
        ),
    ],
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT",
            help="Texts. answer: the question. rerank: the query, then documents. generate: "
            "prompts. chat: messages, each of a conversation of its own. label, and embed with "
            "--images: files of images. transcribe: audio files.",
        ),
    ],
    second: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="classify: second text of a pair, once for each text. answer: the context. "
            "label: a label to choose from, once for each, where the model has none of its own.",
        ),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="embed: the texts are files of images.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the server. Default: localhost:8001, for http localhost:8000.",
        ),
    ] = None,
    protocol: Annotated[str, typer.Option(metavar="grpc|http", help="Protocol.")] = "grpc",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default: the only model that is served for the task."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A request parameter, as truncate=true. May be repeated."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a request to a running server and print the answer."""
    from fusewire.serving import asking

    address = address or f"localhost:{8000 if protocol == 'http' else 8001}"
    parameters = asking.read_parameters(parameter or [])
    if asking.streams(task, parameters) and not (as_json or second or images):
        for piece in asking.pieces(task, texts, address, protocol, model, parameters):
            out.print(piece, end="", markup=False)
        return
    lines, records = asking.ask(
        task,
        texts,
        second or [],
        address,
        protocol,
        model,
        parameters,
        images=images,
    )
    if as_json:
        out.print(json.dumps(records, ensure_ascii=False), markup=False)
    else:
        out.print("\n".join(lines), markup=False)
