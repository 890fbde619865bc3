"""Command-line flags from the settings classes, so that each field is described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_SECRETS = {"control_key": "FUSEWIRE_CONTROL_KEY"}


def with_flags(*settings: type[BaseModel], leave_out: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Adds a flag per field of `settings` to a typer command, which gets them as keyword arguments.

    A flag that was not given is None, so that the settings class alone knows the default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        fields: dict[str, list[Any]] = {}  # several classes may have a field of one name
        for each in settings:
            for name, field in each.model_fields.items():
                if name not in leave_out:
                    fields.setdefault(name, []).append(field)
        flags = [_flag(name, *of_name) for name, of_name in fields.items()]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=own + flags
        )
        command.__annotations__ = {
            parameter.name: parameter.annotation for parameter in own + flags
        }
        return command

    return decorate


def given(values: dict[str, Any], *settings: type[BaseModel]) -> dict[str, Any]:
    """The flags of `settings` that were given."""
    fields = {name for each in settings for name in each.model_fields}
    return {name: value for name, value in values.items() if name in fields and value is not None}


def _flag(name: str, field: Any, *others: Any) -> inspect.Parameter:
    """The flag of a name; fields that differ are described one after the other."""
    flag = f"--{name.replace('_', '-')}"
    boolean = field.annotation in (bool, bool | None)
    text = " For generate: ".join(
        dict.fromkeys(_described(each, boolean) for each in (field, *others))
    )
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if boolean else flag,
        help=text,
        show_default=False,
        envvar=_SECRETS.get(name),
        show_envvar=False,
    )
    kind = Annotated[field.annotation | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _described(field: Any, boolean: bool) -> str:
    text = field.description or ""
    if field.default not in (None, PydanticUndefined):
        text += f" [default: {str(field.default).lower() if boolean else field.default}]"
    return text
