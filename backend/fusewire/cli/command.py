"""A command whose help lists its options by group, each on its own line. It is readable at 80
columns, where rich's tables leave 18 for the text."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

PASSED_ON = "passed_on"  # in the context's `meta`: the arguments after `--`


class Command(TyperCommand):
    """Takes sections from the options' `rich_help_panel`; `-h` is `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # pydantic parses the values, and prefixes the type of its error to the message.
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                name, text = record
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                if parameter.param_type_name == "argument":
                    name, panel = name.partition(" <")[0], "Arguments"  # without its type
                sections.setdefault(panel, []).append((name, text))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=4)


class PassingCommand(Command):
    """Stores the arguments after `--` in the context, for another program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            end = args.index("--")
            ctx.meta[PASSED_ON] = tuple(args[end + 1 :])
            args = args[:end]
        return super().parse_args(ctx, args)


def passed_on(ctx: typer.Context) -> tuple[str, ...] | None:
    """Returns the arguments after `--`, or None without `--`."""
    words: tuple[str, ...] | None = ctx.meta.get(PASSED_ON)
    return words
