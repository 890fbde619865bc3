"""Makes command-line flags from the settings classes, so that each field is described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fusewire.serving.environment import variable
from fusewire.serving.setting import group, limits

GROUPS = ("server", "model", "batching", "generation", "security", "logging")
# The settings of `serve` that `doctor` examines.
EXAMINED = {"host", "http_port", "grpc_port", "metrics_port", "openai_port", "tritonserver"}
_UNITS = {
    "_port": "PORT",
    "_s": "SECONDS",
    "_us": "MICROSECONDS",
    "_mib": "MIB",
    "_tokens": "TOKENS",
    "_length": "TOKENS",
}


def with_flags(
    *settings: type[BaseModel], leave_out: Iterable[str] = (), environment: bool = False
) -> Callable[..., Any]:
    """Adds a flag per field of `settings` to a typer command, which receives them as keyword
    arguments.

    A flag that is not given is None, so that defaults are only in the settings class.
    `environment`: a flag that is not on the command line is taken from its environment variable.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        flags = [
            _flag(name, fields, environment)
            for name, fields in by_name(*settings, leave_out=leave_out).items()
        ]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=own + flags
        )
        command.__annotations__ = {
            parameter.name: parameter.annotation for parameter in own + flags
        }
        return command

    return decorate


def by_name(
    *settings: type[BaseModel], leave_out: Iterable[str] = ()
) -> dict[str, list[FieldInfo]]:
    """Returns the fields of several classes by name, in the order of the groups. Several classes
    may have a field of the same name."""
    fields: dict[str, list[FieldInfo]] = {}
    for each in settings:
        for name, field in each.model_fields.items():
            if name not in leave_out:
                fields.setdefault(name, []).append(field)
    return dict(sorted(fields.items(), key=lambda row: GROUPS.index(group(row[1][0]))))


def given(values: dict[str, Any], *settings: type[BaseModel]) -> dict[str, Any]:
    """Returns the flags of `settings` that were given."""
    fields = {name for each in settings for name in each.model_fields}
    return {name: value for name, value in values.items() if name in fields and value is not None}


def spelt(name: str, field: FieldInfo) -> str:
    """Returns the flag of a field: `--max-length`, `--truncate/--no-truncate`."""
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if _boolean(field) else f"--{flag}"


def _flag(name: str, fields: list[FieldInfo], environment: bool) -> inspect.Parameter:
    field = fields[0]
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    option = typer.Option(
        spelt(name, field),
        help=_help(name, fields, environment),
        show_default=False,
        envvar=variable(name) if environment else None,
        show_envvar=False,
        metavar=None if _boolean(field) else unit or _kind(field),
        rich_help_panel=group(field).capitalize(),
    )
    annotation: Any = field.annotation
    kind: Any = Annotated[annotation | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _help(name: str, fields: list[FieldInfo], environment: bool) -> str:
    """Returns the descriptions of fields of one name, which may be the same, then limits and
    default."""
    texts = dict.fromkeys(f"{field.description} {_facts(field)}".strip() for field in fields)
    text = " For generate: ".join(texts)
    return f"{text} [env: {variable(name)}]" if environment else text


def default(field: FieldInfo) -> str:
    """Returns the default as text; empty where the description explains it."""
    if field.default in (None, PydanticUndefined, ()):
        return ""
    return str(field.default).lower() if _boolean(field) else str(field.default)


def values(field: FieldInfo) -> str:
    """Returns the allowed values of a field: its words or range, otherwise the type of its
    value."""
    if _boolean(field):
        return "true|false"
    return limits(field) or _kind(field)


def _facts(field: FieldInfo) -> str:
    facts = [limits(field), f"default: {default(field)}" if default(field) else ""]
    found = "; ".join(fact for fact in facts if fact)
    return f"[{found}]" if found else ""


def _boolean(field: FieldInfo) -> bool:
    return field.annotation in (bool, bool | None)


def _kind(field: FieldInfo) -> str:
    """Returns the words that a field accepts, such as `error|warning`, otherwise the type of its
    value."""
    kinds = {field.annotation, *get_args(field.annotation)}
    words = [word for kind in kinds for word in get_args(kind) if isinstance(word, str)]
    numbers = {int: "N", float: "X", Path: "PATH"}
    return "|".join(words) or next((numbers[kind] for kind in kinds if kind in numbers), "TEXT")
