"""The consoles that the commands print to, and parameters that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Model = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER | ID",
        help="A Hugging Face model folder, or a model's id there: owner/name or "
        "owner/name@revision.",
        show_default=False,
    ),
]


@contextmanager
def copying(what: str = "copying") -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar on the terminal. Yields a function that updates it: file name, bytes
    done, bytes in total."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda name, done, total: progress.update(
            bar, description=name, completed=done, total=total
        )
