"""The command `fusewire`: import, serve, ask, check, doctor, models.

An error is one clear line and exit code 2; `--json` writes for machines where that makes sense.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from fusewire import __version__
from fusewire.errors import FusewireError
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
    validated,
)
from fusewire.serving.flags import given, with_flags
from fusewire.serving.foreground import serve_until_signalled
from fusewire.tasks.contract import GENERATE

app = typer.Typer(
    name="fusewire",
    help="Serve Hugging Face Transformers on Triton without computing a padding token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
_MODEL = "A Hugging Face model folder, or a model's id there: owner/name or owner/name@revision."
Model = Annotated[str, typer.Argument(metavar="FOLDER | ID", help=_MODEL, show_default=False)]


def main() -> None:
    """Runs the command line; an error of ours, or of a file, is one line on stderr and exit
    code 2."""
    try:
        app()
    except FusewireError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'fusewire'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(text: str) -> None:
    err.print(f"fusewire: {text}", markup=False)
    sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"fusewire {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("import")
@with_flags(ModelSettings, GeneratorSettings, Deployment, leave_out=("reloads",))
def import_(
    model: Model,
    name: Annotated[
        str | None, typer.Option(help="The model's name. Default: the folder's.")
    ] = None,
    repository: Annotated[Path, typer.Option(help="The model repository to write to.")] = Path(
        "model_repository"
    ),
    link: Annotated[
        bool,
        typer.Option(
            "--link/--copy", help="Link the folder instead of copying what serving reads of it."
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the version.")] = False,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Puts a Hugging Face model into a model repository."""
    from fusewire.hub import model_folder
    from fusewire.serving.repository import import_folder

    deployment = validated(Deployment, given(flags, Deployment))
    folder = model_folder(model)  # shows its own progress
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("copying", total=None)
        entry = import_folder(
            folder,
            repository,
            name=name,
            settings=given(flags, ModelSettings, GeneratorSettings),
            deployment=deployment,
            link=link,
            replace=replace,
            progress=lambda file, done, total: progress.update(
                bar, description=file, completed=done, total=total
            ),
        )
    if as_json:
        out.print_json(json.dumps({"name": entry.name, "path": str(entry)}))
    else:
        out.print(f"{entry.name} is in {repository}; serve it: fusewire serve {repository}")


@app.command()
@with_flags(
    ServerSettings,
    ModelSettings,
    GeneratorSettings,
    Deployment,
    leave_out=("reloads", "version", "versions_served"),
)
def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Model repositories; Hugging Face model folders, or ids there as owner/name or "
            "owner/name@revision. NAME= before a folder or id names the model.",
            show_default="model_repository",
        ),
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Serves models over HTTP and gRPC until it is stopped.

    Model folders and ids are imported on the fly; the settings of models (--task, --device,
    --pooling, …) apply to these only.
    """
    code = serve_until_signalled(
        sources or [Path("model_repository")],
        validated(ServerSettings, given(flags, ServerSettings)),
        given(flags, ModelSettings, GeneratorSettings),
        validated(Deployment, given(flags, Deployment)),
        as_json,
    )
    raise typer.Exit(code)


@app.command()
def ask(
    task: Annotated[
        str, typer.Argument(help="embed, classify, tag, answer, fill, generate or hidden.")
    ],
    texts: Annotated[list[str], typer.Argument(help="The texts, the question, or the prompts.")],
    second: Annotated[
        list[str] | None,
        typer.Option(help="Second text of a pair, one for each text; the context of a question."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="host:port of the server. Default: localhost, 8001 (grpc) or 8000."),
    ] = None,
    protocol: Annotated[str, typer.Option(help="grpc or http.")] = "grpc",
    model: Annotated[
        str | None, typer.Option(help="Default: the only model that does the task.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="A request parameter, as truncate=true.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Asks a running server and shows the answer."""
    from fusewire.serving import asking

    address = address or f"localhost:{8000 if protocol == 'http' else 8001}"
    parameters = asking.read_parameters(parameter or [])
    if task == GENERATE and not as_json and not second:
        for piece in asking.pieces(texts, address, protocol, model, parameters):
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
    )
    if as_json:
        out.print(json.dumps(records, ensure_ascii=False), markup=False)
    else:
        out.print("\n".join(lines), markup=False)


@app.command()
def check(
    model: Model,
    task: Annotated[str | None, typer.Option(help="Default: the checkpoint's.")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Random sequences to compare on.")] = 8,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest difference that passes. Default: 1e-4, of results over 6 2^-16 of the "
            "largest; in 16 bits twice that of transformers from itself in fp32, and rounding.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    as_json: Json = False,
) -> None:
    """Compares fusewire with transformers on random ragged input; exit code 1 if they differ.

    Of a model that generates: the logits after each prompt and of 16 greedy tokens behind it.
    """
    from fusewire.parity import parity

    with err.status("running the model twice"):
        found = parity(model, task, device, dtype, sequences=sequences)
    if tolerance is not None:
        found = replace(found, granted=dict.fromkeys(found.granted, tolerance))
    if as_json:
        out.print_json(json.dumps({**asdict(found), "passed": found.passed}))
    else:
        table = Table("result", "largest difference", "granted", box=None)
        for name, difference in found.differences.items():
            table.add_row(name, f"{difference:.2e}", f"{found.granted[name]:.2e}")
        out.print(
            f"{found.architecture}, task {found.task}: {found.sequences} sequences, "
            f"{found.tokens} tokens"
        )
        out.print(table)
        if found.greedy_tokens:
            out.print(f"greedy tokens: {found.greedy_equal} of {found.greedy_tokens} equal")
        out.print(
            "equal within what is granted" if found.passed else "DIFFERENT: more than granted"
        )
    raise typer.Exit(0 if found.passed else 1)


@app.command()
@with_flags(ServerSettings)
def doctor(as_json: Json = False, **flags: Any) -> None:
    """Looks at what serving needs on this machine; exit code 1 if something is missing."""
    from fusewire.serving.doctor import examine

    findings = list(examine(validated(ServerSettings, given(flags, ServerSettings))))
    if as_json:
        out.print_json(json.dumps([vars(finding) for finding in findings]))
    else:
        table = Table(box=None, show_header=False)
        for finding in findings:
            text = f"{finding.found}\n  -> {finding.remedy}" if finding.remedy else finding.found
            table.add_row("FAIL" if finding.remedy else "ok", finding.subject, text)
        out.print(table)
    raise typer.Exit(1 if any(finding.remedy for finding in findings) else 0)


@app.command()
def models(as_json: Json = False) -> None:
    """Lists the architectures that can be served, and what they can be asked for."""
    from fusewire.models.registry import ARCHITECTURES, DECODERS, tasks_served

    rows = [
        *((name, f"{row.classes}*", tasks_served(row)) for name, row in ARCHITECTURES.items()),
        *((name, row.causal_class, tasks_served(row)) for name, row in DECODERS.items()),
    ]
    if as_json:
        keys = ("model_type", "classes", "tasks")
        out.print_json(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    table = Table("model_type", "transformers classes", "tasks", box=None)
    for name, classes, tasks in rows:
        table.add_row(name, classes.replace("*", "…"), ", ".join(tasks))
    out.print(table)


if __name__ == "__main__":
    main()
