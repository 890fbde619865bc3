"""`fusewire doctor`: what serving needs, and what of it is missing here."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from fusewire.cli.console import Json, out
from fusewire.serving.config import ServerSettings, validated
from fusewire.serving.flags import EXAMINED, given, with_flags


@with_flags(
    ServerSettings, leave_out=ServerSettings.model_fields.keys() - EXAMINED, environment=True
)
def doctor(
    as_json: Json = False,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Measure instead what micro-batches of this model cost here: a table and a plot.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where --costs measures: auto, cpu, cuda:<index>.")
    ] = "auto",
    **flags: Any,
) -> None:
    """Check what serving needs on this machine.

    Checks packages, kernels, GPUs, the tritonserver program, shared memory, ports and environment
    variables, and prints a remedy for each problem.

    Exit code 0: nothing is missing; 1: something is; 2: an error.
    """
    if costs is not None:
        from fusewire.cli.costs import show

        show(costs, device, as_json=as_json)
        return
    from fusewire.serving.supervisor.doctor import examine

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
