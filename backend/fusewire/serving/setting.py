"""The properties of a setting beside its description: its group, its limits, whether it is
secret."""

from __future__ import annotations

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def group(field: FieldInfo) -> str:
    """Returns the section of the help that lists the field; `model` by default."""
    return str(_extra(field).get("group", "model"))


def secrets(settings: type[BaseModel]) -> list[str]:
    """Returns the fields whose values are never printed, logged or passed to other programs."""
    return [name for name, field in settings.model_fields.items() if _extra(field).get("secret")]


def limits(field: FieldInfo) -> str:
    """Returns the range of a number: `1 to 64`, `at least 1`, `above 0`; empty without one."""
    least = most = above = None
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge):
            least = limit.ge
        elif isinstance(limit, annotated_types.Gt):
            above = limit.gt
        elif isinstance(limit, annotated_types.Le):
            most = limit.le
    if least is not None and most is not None:
        return f"{least} to {most}"
    if above is not None:
        return f"above {above}"
    return f"at least {least}" if least is not None else ""


def _extra(field: FieldInfo) -> dict[str, object]:
    extra = field.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}
