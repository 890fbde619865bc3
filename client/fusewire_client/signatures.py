"""The name, docstring and signature that `help()` shows for a method that runs a plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def show(method: Any, plan: Callable[..., Any]) -> None:
    """Gives `method` the plan's name, docstring and signature, with `self` in place of the settings
    and the plan's result as return type."""
    signature = inspect.signature(plan)
    given = list(signature.parameters.values())[1:]
    result = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__, method.__doc__ = plan.__name__, plan.__doc__
    method.__qualname__ = plan.__name__
    method.__signature__ = signature.replace(parameters=[own, *given], return_annotation=result)
