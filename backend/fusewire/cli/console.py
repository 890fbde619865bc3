"""Where the commands write, and the option that makes them write JSON."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
