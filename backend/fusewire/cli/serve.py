"""`fusewire serve`: reads the configuration from flags, environment and file, and runs a server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fusewire.cli.command import passed_on
from fusewire.serving import environment
from fusewire.serving.config import (
    SERVE,
    SERVE_WITHOUT,
    Deployment,
    GeneratorSettings,
    ModelSettings,
    ServerSettings,
    validated,
)
from fusewire.serving.flags import given, with_flags


@with_flags(*SERVE, leave_out=SERVE_WITHOUT, environment=True)
def serve(
    context: typer.Context,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Model repositories; Hugging Face model folders, or ids there as owner/name or "
            "owner/name@revision. NAME= before a folder or id names the model. In place of the "
            "`models` of --config. Default: model_repository.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with settings of the server and a list `models`. "
            f"[env: {environment.CONFIG}]",
            envvar=environment.CONFIG,
            show_envvar=False,
            metavar="FILE",
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the configuration as such a file, and exit."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as JSON lines, for programs.")
    ] = False,
    **flags: Any,
) -> None:
    """Serve models over HTTP and gRPC.

    Model folders and ids are imported on the fly. The settings of models (--task, --device,
    --pooling, …) apply to each of these whose task has them: with --kv-cache-mib every model that
    generates has a KV cache of that size. For other values of each see --config; models of a
    repository have theirs in config.pbtxt.

    A setting is taken from its flag, else its environment variable, else the file of --config,
    else its default. Flags after -- are passed to tritonserver:
    fusewire serve FOLDER -- --trace-config=mode=opentelemetry

    Exit code 0: stopped by SIGTERM, SIGINT, SIGHUP or SIGQUIT; 1: the server kept dying; 2: it
    could not start.
    """
    from fusewire.serving.supervisor import config_file
    from fusewire.serving.supervisor.foreground import serve_until_signalled
    from fusewire.serving.supervisor.sources import Source

    environment.check(os.environ)
    file = None if config is None else config_file.ConfigFile(config)
    values = {} if file is None else file.server
    values |= given(flags, ServerSettings)
    words = passed_on(context)
    if words is not None:
        values["tritonserver_args"] = words
    settings = validated(ServerSettings, values)
    chosen = [Source(source) for source in sources or []]
    if not chosen and file is not None:
        chosen = file.sources
    served = [
        source.overridden(given(flags, ModelSettings, GeneratorSettings), given(flags, Deployment))
        for source in chosen or [Source(Path("model_repository"))]
    ]
    if print_config:
        typer.echo(config_file.printed(settings, served), nl=False)
        return
    raise typer.Exit(serve_until_signalled(served, settings, as_json))
