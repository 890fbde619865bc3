"""The command `fusewire`: import, serve, ask, check, doctor, models.

An error is one line on stderr and exit code 2; `--json` prints for programs.
"""

from __future__ import annotations

import json
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from fusewire import __version__
from fusewire.cli.ask import ask
from fusewire.cli.check import check
from fusewire.cli.command import Command, PassingCommand
from fusewire.cli.console import Json, Model, copying, err, out
from fusewire.cli.doctor import doctor
from fusewire.cli.serve import serve
from fusewire.errors import ConfigurationError, FusewireError
from fusewire.serving.config import (
    Deployment,
    GeneratorSettings,
    ModelSettings,
    validated,
)
from fusewire.serving.flags import given, with_flags

app = typer.Typer(
    name="fusewire",
    help="Serve Hugging Face Transformers on NVIDIA Triton, packed instead of padded.\n\n"
    "Exit codes: 0 done, 1 a check failed or the server died, 2 an error, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Runs the command line. A FusewireError or OSError is one line on stderr and exit code 2."""
    if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack some characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="fusewire")
    except FusewireError as error:
        _fail(str(error))
    except OSError as error:
        _fail(": ".join(str(each) for each in (error.filename, error.strerror or error) if each))
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


@app.command("import", cls=Command)
@with_flags(Deployment, ModelSettings, GeneratorSettings, leave_out=("reloads",))
def import_(
    model: Model,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name. Default: the folder's.")
    ] = None,
    repository: Annotated[
        Path, typer.Option(metavar="PATH", help="The model repository to write to.")
    ] = Path("model_repository"),
    link: Annotated[
        bool,
        typer.Option(
            "--link/--copy", help="Link the model folder, or copy the files that serving reads."
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite an existing version.")
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts to measure the matrices with that --quantize quantises, one a line, the "
            "first 64. Default: random ids.",
        ),
    ] = None,
    smooth: Annotated[
        float | None,
        typer.Option(
            metavar="ALPHA",
            help="With --quantize int8, of a decoder: move this share of the outliers of "
            "activations into the weights first (SmoothQuant), 0 to 1; 0.5 is usual. Default: "
            "leave them.",
        ),
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Write a model into a model repository.

    Copies the files that serving reads, and writes config.pbtxt from the settings below.
    TensorFlow weights (tf_model.h5, or a checkpoint with its index) become safetensors; that needs
    the extra fusewire[tensorflow].

    With --quantize each matrix is quantised alone first, and those that change the model's results
    too much keep their dtype: prints a table of the errors, and sets quantize_skip. Models of
    images are not measured. With --smooth too, the weights that are written are the smoothed ones.
    """
    from fusewire.cli.calibrate import as_json as calibration_json
    from fusewire.cli.calibrate import show, warn_where_worse
    from fusewire.cli.prepare import prepared
    from fusewire.hub import model_folder
    from fusewire.serving.repository import default_name, import_folder

    deployment = validated(Deployment, given(flags, Deployment))
    settings = given(flags, ModelSettings, GeneratorSettings)
    if link and smooth is not None:
        raise ConfigurationError(
            f"smooth: got {smooth} and --link, wanted --copy, as weights are changed; remove one "
            "of them"
        )
    folder = model_folder(model)  # shows its own progress bar
    making = prepared(folder, settings, deployment.device, calibrate, smooth, repository)
    with making as ready, copying() as progress:
        if ready.found is not None:
            settings["quantize_skip"] = ",".join(ready.found.skipped)
        entry = import_folder(
            ready.folder,
            repository,
            name=default_name(folder) if name is None else name,
            settings=settings,
            deployment=deployment,
            link=link,
            replace=replace,
            progress=progress,
        )
    if ready.found is not None:
        warn_where_worse(ready.found, ready.before)
    if as_json:
        facts = {
            "name": entry.name,
            "path": str(entry),
            **calibration_json(ready.found, ready.before),
        }
        out.print_json(json.dumps(facts))
    else:
        if ready.found is not None:
            show(ready.found, ready.before)
        out.print(f"{entry.name} is in {repository}; serve it: fusewire serve {repository}")


app.command(cls=PassingCommand)(serve)
app.command(cls=Command)(ask)
app.command(cls=Command)(check)
app.command(cls=Command)(doctor)


@app.command(cls=Command)
def models(as_json: Json = False) -> None:
    """List the supported architectures and their tasks."""
    from fusewire.models.registry import (
        ARCHITECTURES,
        DECODERS,
        IMAGE_ENCODERS,
        SEQ2SEQ,
        SEQ2SEQ_ENCODERS,
        SPEECH,
        tasks_served,
    )

    rows = [
        *((name, f"{row.classes}*", tasks_served(row)) for name, row in ARCHITECTURES.items()),
        *(
            (name, row.causal_class, tasks_served(row) + tasks_served(SEQ2SEQ_ENCODERS[name]))
            for name, row in SEQ2SEQ.items()
        ),
        *((name, row.causal_class, tasks_served(row)) for name, row in SPEECH.items()),
        *((name, row.causal_class, tasks_served(row)) for name, row in DECODERS.items()),
        *((name, f"{row.classes}*", tasks_served(row)) for name, row in IMAGE_ENCODERS.items()),
    ]
    if as_json:
        keys = ("model_type", "classes", "tasks")
        out.print_json(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    # Names are not shortened on narrow terminals: "…" stands for all classes with this prefix.
    classes = Column("transformers classes", no_wrap=True)
    table = Table(Column("model_type", no_wrap=True), classes, "tasks", box=None)
    for name, begins, tasks in rows:
        table.add_row(name, begins.replace("*", "…"), ", ".join(tasks))
    out.print(table)
