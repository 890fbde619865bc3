"""Where the commands write, and the parameters that several have."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

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
